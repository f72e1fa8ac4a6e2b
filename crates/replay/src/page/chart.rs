//! A chart as SVG: axes first, then layers in the order in which they are asked for.
//!
//! Colours and dashes are classes, so that the page's style can turn them for dark screens. Coordinates have one
//! digit after the point and lines are written as steps from point to point: that is a third of the bytes.

use std::fmt::Write as _;

use super::axis::Axis;
use super::words::escape;

/// Sizes in units of the SVG; the plot is what the margins leave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    width: f64,
    height: f64,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

/// With room for names on the right.
pub(super) const WIDE: Frame =
    Frame { width: 760.0, height: 360.0, left: 58.0, right: 158.0, top: 22.0, bottom: 44.0 };
/// One of many.
pub(super) const SMALL: Frame =
    Frame { width: 280.0, height: 150.0, left: 34.0, right: 10.0, top: 10.0, bottom: 36.0 };

/// Between two lines of text.
const LINE_HEIGHT: f64 = 14.0;
const COLOURS: usize = 6;
const DASHES: usize = 4;

/// The look of a series; every page tells them apart by colour, dash and letter.
pub(super) fn class(series: usize) -> String {
    format!("c{} d{}", series % COLOURS, series / COLOURS % DASHES)
}

/// `A` to `Z`, then `A2` and on.
pub(super) fn letter(series: usize) -> String {
    let letter = char::from(b'A' + (series % 26) as u8);
    match series / 26 {
        0 => letter.to_string(),
        round => format!("{letter}{}", round + 1),
    }
}

/// A name at the right edge, as near to the end of its line as others allow.
pub(super) struct Label {
    pub(super) series: usize,
    pub(super) text: String,
    /// Where it would like to be, on the y axis.
    pub(super) value: f64,
}

/// What is said to those who cannot see it.
pub(super) struct About<'a> {
    /// Unique on the page.
    pub(super) id: &'a str,
    pub(super) title: &'a str,
    pub(super) text: &'a str,
}

pub(super) struct Chart {
    frame: Frame,
    x: Axis,
    y: Axis,
    svg: String,
}

impl Chart {
    pub(super) fn begin(frame: Frame, about: &About<'_>, x: Axis, y: Axis) -> Chart {
        let (id, title, text) = (about.id, escape(about.title), escape(about.text));
        let svg = format!(
            "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\">\
             <title id=\"{id}-t\">{title}</title><desc id=\"{id}-d\">{text}</desc>\n",
            frame.width, frame.height
        );
        let mut chart = Chart { frame, x, y, svg };
        chart.axes();
        chart
    }

    pub(super) fn finish(mut self) -> String {
        self.svg.push_str("</svg>\n");
        self.svg
    }

    fn axes(&mut self) {
        let Frame { width, height, left, right, top, bottom } = self.frame;
        let (x_end, y_end) = (width - right, height - bottom);
        let mut svg = String::from("<g class=\"axis\">");
        for tick in &self.y.ticks {
            let y = self.y_of(tick.value);
            let _ = write!(svg, "<path d=\"M{} {}H{}\"/>", short(left), short(y), short(x_end));
            let label = escape(&tick.label);
            let _ = write!(
                svg,
                "<text x=\"{}\" y=\"{}\" class=\"e\">{label}</text>",
                short(left - 6.0),
                short(y + 4.0)
            );
        }
        for tick in &self.x.ticks {
            let x = self.x_of(tick.value);
            let _ =
                write!(svg, "<path class=\"v\" d=\"M{} {}V{}\"/>", short(x), short(top), short(y_end + 4.0));
            let label = escape(&tick.label);
            let _ = write!(
                svg,
                "<text x=\"{}\" y=\"{}\" class=\"m\">{label}</text>",
                short(x),
                short(y_end + 16.0)
            );
        }
        let middle = short((left + x_end) / 2.0);
        let _ = write!(
            svg,
            "<text x=\"{middle}\" y=\"{}\" class=\"m n\">{}</text>",
            short(height - 8.0),
            escape(&self.x.title)
        );
        if !self.y.title.is_empty() {
            let title = escape(&self.y.title);
            let _ = write!(svg, "<text x=\"2\" y=\"11\" class=\"n\">{title}</text>");
        }
        svg.push_str("</g>\n");
        self.svg.push_str(&svg);
    }

    fn x_of(&self, value: f64) -> f64 {
        let Frame { width, left, right, .. } = self.frame;
        left + self.x.place(value) * (width - left - right)
    }

    fn y_of(&self, value: f64) -> f64 {
        let Frame { height, top, bottom, .. } = self.frame;
        top + (1.0 - self.y.place(value)) * (height - top - bottom)
    }

    fn spots(&self, points: &[(f64, f64)]) -> Vec<(f64, f64)> {
        points.iter().map(|&(x, y)| (self.x_of(x), self.y_of(y))).collect()
    }

    /// A line of a series; where there is no value, there is a gap.
    pub(super) fn line(&mut self, series: usize, name: &str, points: &[(f64, Option<f64>)]) {
        let mut steps = String::new();
        for piece in points.split(|it| it.1.is_none()) {
            let piece: Vec<(f64, f64)> = piece.iter().filter_map(|&(x, y)| Some((x, y?))).collect();
            steps.push_str(&path(&self.spots(&piece)));
        }
        if !steps.is_empty() {
            let (class, name) = (class(series), escape(name));
            let _ = writeln!(
                self.svg,
                "<path class=\"line {class}\" data-s=\"{series}\" d=\"{steps}\"><title>{name}</title></path>"
            );
        }
    }

    /// A thin line with a name that shows when it is pointed at.
    pub(super) fn thin(&mut self, look: usize, name: &str, points: &[(f64, f64)]) {
        let (class, name, steps) = (class(look), escape(name), path(&self.spots(points)));
        if !steps.is_empty() {
            let _ =
                writeln!(self.svg, "<path class=\"thin {class}\" d=\"{steps}\"><title>{name}</title></path>");
        }
    }

    /// What lies between two lines over the same places.
    pub(super) fn band(&mut self, low: &[(f64, f64)], high: &[(f64, f64)], name: &str) {
        let edge: Vec<(f64, f64)> = high.iter().copied().chain(low.iter().rev().copied()).collect();
        let (steps, name) = (path(&self.spots(&edge)), escape(name));
        if !steps.is_empty() {
            let _ = writeln!(self.svg, "<path class=\"band\" d=\"{steps}z\"><title>{name}</title></path>");
        }
    }

    pub(super) fn dots(&mut self, series: usize, points: &[(f64, f64)]) {
        let class = class(series);
        for (x, y) in self.spots(points) {
            let (x, y) = (short(x), short(y));
            let _ = writeln!(
                self.svg,
                "<circle class=\"dot {class}\" data-s=\"{series}\" cx=\"{x}\" cy=\"{y}\" r=\"3\"/>"
            );
        }
    }

    /// The series' letter on its line.
    pub(super) fn mark(&mut self, series: usize, (x, y): (f64, f64)) {
        let (x, y) = (short(self.x_of(x)), short(self.y_of(y) + 4.0));
        let (class, letter) = (class(series), letter(series));
        let _ = writeln!(
            self.svg,
            "<text class=\"mark {class}\" data-s=\"{series}\" x=\"{x}\" y=\"{y}\">{letter}</text>"
        );
    }

    /// An upright line with a word at its head.
    pub(super) fn upright(&mut self, x: f64, text: &str) {
        let Frame { width, height, top, right, bottom, .. } = self.frame;
        let (x, text) = (self.x_of(x), escape(text));
        let near_the_edge = x > (width - right) * 0.8;
        let (at, class) = if near_the_edge { (x - 4.0, "e") } else { (x + 4.0, "b") };
        let _ = writeln!(
            self.svg,
            "<g class=\"rule\"><path d=\"M{} {}V{}\"/><text class=\"{class}\" x=\"{}\" y=\"{}\">{text}</text></g>",
            short(x),
            short(top - 6.0),
            short(height - bottom),
            short(at),
            short(top - 1.0)
        );
    }

    /// A slanted line between two places.
    pub(super) fn rule(&mut self, from: (f64, f64), to: (f64, f64)) {
        let steps = path(&self.spots(&[from, to]));
        let _ = writeln!(self.svg, "<g class=\"rule\"><path d=\"{steps}\"/></g>");
    }

    /// Names at the right edge, none on top of another; a hair leads from each to its value.
    pub(super) fn labels(&mut self, mut labels: Vec<Label>) {
        labels.sort_by(|one, other| other.value.total_cmp(&one.value).then(one.series.cmp(&other.series)));
        let Frame { width, height, right, top, bottom, .. } = self.frame;
        let wanted: Vec<f64> = labels.iter().map(|it| self.y_of(it.value)).collect();
        let edge = width - right;
        for ((label, wish), y) in labels.iter().zip(&wanted).zip(spread(&wanted, top, height - bottom)) {
            let (series, class) = (label.series, class(label.series));
            let hair = path(&[(edge + 2.0, *wish), (edge + 10.0, y)]);
            let _ = writeln!(
                self.svg,
                "<g class=\"label {class}\" data-s=\"{series}\"><path d=\"{hair}\"/>\
                 <text x=\"{}\" y=\"{}\">{} {}</text></g>",
                short(edge + 13.0),
                short(y + 4.0),
                letter(series),
                escape(&label.text)
            );
        }
    }
}

/// Moves sorted places apart until lines of text fit between them, down first and then up from the end.
fn spread(wanted: &[f64], top: f64, end: f64) -> Vec<f64> {
    let room = (end - top) / wanted.len().saturating_sub(1).max(1) as f64;
    let gap = LINE_HEIGHT.min(room);
    let mut places: Vec<f64> = Vec::with_capacity(wanted.len());
    for &wish in wanted {
        let least = places.last().map_or(top, |it| it + gap);
        places.push(wish.max(least));
    }
    let mut most = end;
    for place in places.iter_mut().rev() {
        *place = place.min(most);
        most = *place - gap;
    }
    places
}

/// From point to point in steps of tenths. The steps are between rounded places, so errors do not add up.
fn path(spots: &[(f64, f64)]) -> String {
    let tenths = |it: f64| (it * 10.0).round() as i64;
    let mut places = spots.iter().map(|&(x, y)| (tenths(x), tenths(y)));
    let Some(mut at) = places.next() else { return String::new() };
    let mut text = format!("M{}", pair(at.0, at.1));
    let mut first = true;
    for place in places {
        if place == at {
            continue;
        }
        let step = pair(place.0 - at.0, place.1 - at.1);
        if first {
            text.push('l');
        } else if !step.starts_with('-') {
            text.push(' ');
        }
        text.push_str(&step);
        (at, first) = (place, false);
    }
    text
}

fn pair(x: i64, y: i64) -> String {
    let (x, y) = (decimal(x), decimal(y));
    if y.starts_with('-') { format!("{x}{y}") } else { format!("{x} {y}") }
}

/// Tenths, with nothing that can be left out.
fn decimal(tenths: i64) -> String {
    let sign = if tenths < 0 { "-" } else { "" };
    match (tenths.abs() / 10, tenths.abs() % 10) {
        (whole, 0) => format!("{sign}{whole}"),
        (0, rest) => format!("{sign}.{rest}"),
        (whole, rest) => format!("{sign}{whole}.{rest}"),
    }
}

fn short(value: f64) -> String {
    decimal((value * 10.0).round() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_short_and_end_where_they_should() {
        assert_eq!(path(&[(1.0, 2.04), (1.51, 1.0), (3.0, 1.0), (3.0, 1.0)]), "M1 2l.5-1 1.5 0");
        assert_eq!(path(&[]), "");
        // Ten steps of a third of a tenth each come to a third, not to nothing.
        let creeping: Vec<(f64, f64)> = (0..=10).map(|it| (f64::from(it) / 30.0, 0.0)).collect();
        assert_eq!(path(&creeping), "M0 0l.1 0 .1 0 .1 0");
    }

    #[test]
    fn names_do_not_lie_on_each_other() {
        assert_eq!(spread(&[50.0, 90.0], 0.0, 100.0), [50.0, 90.0]);
        assert_eq!(spread(&[50.0, 51.0, 52.0], 0.0, 100.0), [50.0, 64.0, 78.0]);
        assert_eq!(spread(&[99.0, 100.0], 0.0, 100.0), [86.0, 100.0]);
        // Too many to fit: then as far apart as can be.
        assert_eq!(spread(&[0.0; 11], 0.0, 100.0)[10], 100.0);
        assert!(spread(&[], 0.0, 100.0).is_empty());
    }

    #[test]
    fn every_series_looks_different() {
        let looks: std::collections::BTreeSet<String> = (0..COLOURS * DASHES).map(class).collect();
        assert_eq!(looks.len(), COLOURS * DASHES);
        assert_eq!([letter(0), letter(25), letter(26)], ["A", "Z", "A2"]);
    }
}
