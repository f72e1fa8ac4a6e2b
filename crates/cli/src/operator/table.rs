//! A table of text that fits a width: less important columns are left out before cells are cut.

use ratatui::text::Span;

/// Between two columns.
const GAP: usize = 2;

const CUT: char = '…';

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
    /// Left-aligned and cut at its beginning: addresses differ at their end.
    End,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) title: &'static str,
    /// Columns of the highest rank are left out first; rank 0 always stays.
    pub(crate) rank: u8,
    pub(crate) side: Side,
    /// The widest it gets, and the narrowest it is cut to.
    pub(crate) most: usize,
    pub(crate) least: usize,
}

impl Column {
    /// Numbers, never cut.
    pub(crate) const fn number(title: &'static str, rank: u8) -> Column {
        Column { title, rank, side: Side::Right, most: 24, least: 24 }
    }

    /// Words, never cut below `least`.
    pub(crate) const fn words(title: &'static str, rank: u8, least: usize) -> Column {
        Column { title, rank, side: Side::Left, most: 40, least }
    }

    pub(crate) const fn address(title: &'static str, least: usize) -> Column {
        Column { title, rank: 0, side: Side::End, most: 40, least }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct TextTable {
    pub(crate) columns: Vec<Column>,
    /// A cell for each column.
    pub(crate) rows: Vec<Vec<String>>,
}

/// The columns that fit, and the width of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fit(Vec<(usize, usize)>);

impl TextTable {
    /// At most `width` cells, unless the columns of rank 0 need more at their narrowest.
    pub(crate) fn fit(&self, width: usize) -> Fit {
        let natural = |(place, column): (usize, &Column)| {
            let cells = self.rows.iter().filter_map(|row| row.get(place)).map(|it| cells(it));
            let widest = cells.max().unwrap_or(0).min(column.most).max(self::cells(column.title));
            (place, widest)
        };
        let mut shown: Vec<(usize, usize)> = self.columns.iter().enumerate().map(natural).collect();
        loop {
            let over = total(&shown).saturating_sub(width);
            if over == 0 {
                return Fit(shown);
            }
            let slack = |&(place, wide): &(usize, usize)| {
                wide.saturating_sub(self.columns[place].least.max(self::cells(self.columns[place].title)))
            };
            let slacks: usize = shown.iter().map(slack).sum();
            let last = shown.iter().map(|it| self.columns[it.0].rank).max().unwrap_or(0);
            if slacks >= over || last == 0 {
                narrow(&mut shown, over, slack);
                return Fit(shown);
            }
            if let Some(place) = shown.iter().rposition(|it| self.columns[it.0].rank == last) {
                shown.remove(place);
            }
        }
    }

    /// Whether all columns fit.
    pub(crate) fn fits(&self, width: usize) -> bool {
        self.fit(width).0.len() == self.columns.len()
    }

    /// With another table to its right, row by row.
    pub(crate) fn beside(mut self, other: TextTable) -> TextTable {
        self.columns.extend(other.columns);
        for (row, more) in self.rows.iter_mut().zip(other.rows) {
            row.extend(more);
        }
        self
    }

    pub(crate) fn head(&self, fit: &Fit) -> String {
        self.line(fit, |place| self.columns[place].title)
    }

    pub(crate) fn row(&self, fit: &Fit, row: usize) -> String {
        self.line(fit, |place| self.rows.get(row).and_then(|it| it.get(place)).map_or("", String::as_str))
    }

    /// Titles and rows, one line each.
    pub(crate) fn lines(&self, width: usize) -> Vec<String> {
        let fit = self.fit(width);
        let rows = (0..self.rows.len()).map(|it| self.row(&fit, it));
        std::iter::once(self.head(&fit)).chain(rows).collect()
    }

    fn line<'a>(&'a self, fit: &Fit, cell: impl Fn(usize) -> &'a str) -> String {
        let padded = fit.0.iter().map(|&(place, wide)| pad(cell(place), wide, self.columns[place].side));
        padded.collect::<Vec<_>>().join(&" ".repeat(GAP)).trim_end().to_owned()
    }
}

/// Takes the excess width from columns with slack, from the left.
fn narrow(shown: &mut [(usize, usize)], over: usize, slack: impl Fn(&(usize, usize)) -> usize) {
    let mut over = over;
    for it in shown {
        let less = slack(it).min(over);
        it.1 -= less;
        over -= less;
    }
}

fn total(shown: &[(usize, usize)]) -> usize {
    let gaps = GAP * shown.len().saturating_sub(1);
    gaps + shown.iter().map(|it| it.1).sum::<usize>()
}

/// Terminal cells that a text takes.
pub(crate) fn cells(text: &str) -> usize {
    Span::raw(text).width()
}

fn pad(text: &str, wide: usize, side: Side) -> String {
    let text = cut(text, wide, side);
    let blank = " ".repeat(wide.saturating_sub(cells(&text)));
    if side == Side::Right { blank + &text } else { text + &blank }
}

/// A text cut to so many cells.
pub(crate) fn cut(text: &str, wide: usize, side: Side) -> String {
    if cells(text) <= wide {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut room = wide.saturating_sub(1);
    let take = |it: char, kept: &mut String| {
        let takes = cells(it.encode_utf8(&mut [0; 4]));
        let fits = takes <= room;
        if fits {
            room -= takes;
            kept.push(it);
        }
        fits
    };
    let mut take = take;
    match side {
        _ if wide == 0 => String::new(),
        Side::End => {
            let _ = text.chars().rev().take_while(|&it| take(it, &mut kept)).count();
            std::iter::once(CUT).chain(kept.chars().rev()).collect()
        }
        Side::Left | Side::Right => {
            let _ = text.chars().take_while(|&it| take(it, &mut kept)).count();
            kept.push(CUT);
            kept
        }
    }
}

/// Breaks a sentence between words.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if cells(line) + 1 + cells(word) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> TextTable {
        let row = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
        TextTable {
            columns: vec![
                Column::address("worker", 8),
                Column::words("state", 1, 5),
                Column::number("now", 2),
                Column::number("hits", 3),
            ],
            rows: vec![
                row(["10.0.0.1:8000", "ready", "3", "81%"]),
                row(["10.0.0.2:8000", "ejected", "12", "-"]),
            ],
        }
    }

    #[track_caller]
    fn check(width: usize, expected: [&str; 3]) {
        let lines = grid().lines(width);
        assert_eq!(lines, expected, "in {width} cells");
        assert!(lines.iter().all(|it| cells(it) <= width));
    }

    #[test]
    fn columns_are_dropped_by_rank_and_addresses_cut_at_their_beginning() {
        let all = [
            "worker         state    now  hits",
            "10.0.0.1:8000  ready      3   81%",
            "10.0.0.2:8000  ejected   12     -",
        ];
        check(80, all);
        check(33, all);
        check(
            30,
            [
                "worker      state    now  hits",
                "….0.1:8000  ready      3   81%",
                "….0.2:8000  ejected   12     -",
            ],
        );
        check(20, ["worker    state  now", "….1:8000  ready    3", "….2:8000  ejec…   12"]);
    }

    #[test]
    fn wide_letters_count_as_two_cells() {
        assert_eq!(cells("表紙"), 4);
        assert_eq!(cut("表紙表紙", 5, Side::Left), "表紙…");
        assert_eq!(cut("表紙表紙", 4, Side::End), "…紙");
        assert_eq!((cut("abc", 0, Side::Left), cut("abc", 3, Side::Left)), (String::new(), "abc".to_owned()));
    }
}
