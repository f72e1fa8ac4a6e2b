//! Least squares with coefficients that cannot be negative, and outliers that count little.
//!
//! Rows are compared by their relative error, so that a first token of seconds does not outweigh a step of milliseconds. The
//! error is relative to the prediction: relative to what was seen, slow requests would count less than fast ones, and the
//! mean of a disturbed engine would come out too low.

/// One equation: the terms of a sum, and what the sum was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Equation<const N: usize> {
    pub(crate) terms: [f64; N],
    pub(crate) sum: f64,
}

impl<const N: usize> Equation<N> {
    pub(crate) fn predict(&self, coefficients: &[f64; N]) -> f64 {
        self.terms.iter().zip(coefficients).map(|(term, it)| term * it).sum()
    }

    /// By how much the prediction is off, as a part of what was seen.
    pub(crate) fn error(&self, coefficients: &[f64; N]) -> f64 {
        (self.predict(coefficients) - self.sum) / self.sum.max(LEAST)
    }
}

/// A tenth of a millisecond, where sums are milliseconds: nothing smaller can be seen from outside.
const LEAST: f64 = 0.1;

const ROUNDS: usize = 12;

/// Errors up to so many times the usual one count in full: Huber's constant. With 4 instead, a process that was stalled now and
/// then moved the smallest constants of `h200-8b` by 16 %.
const USUAL_ERRORS: f64 = 1.345;

/// A usual error is never taken to be smaller than this.
const ERROR_MIN: f64 = 0.002;

/// The coefficients that fit best. A term that no equation has gets zero.
pub(crate) fn solve<const N: usize>(equations: &[Equation<N>]) -> [f64; N] {
    let mut weights: Vec<f64> = equations.iter().map(|it| weight(it.sum)).collect();
    let mut found = [0.0; N];
    for _ in 0..ROUNDS {
        found = solve_weighted(equations, &weights);
        let predicted: Vec<f64> = equations.iter().map(|it| it.predict(&found).max(LEAST)).collect();
        let errors: Vec<f64> = equations
            .iter()
            .zip(&predicted)
            .map(|(it, predicted)| (it.sum / predicted - 1.0).abs())
            .collect();
        let usual = (1.4826 * quantile(&errors, 0.5)).max(ERROR_MIN) * USUAL_ERRORS;
        let counts = errors.iter().map(|&it| if it <= usual { 1.0 } else { usual / it });
        weights = counts.zip(&predicted).map(|(counts, &predicted)| counts * weight(predicted)).collect();
    }
    found
}

/// Makes the squared error of a sum of this size a relative one.
fn weight(sum: f64) -> f64 {
    sum.max(LEAST).powi(-2)
}

/// The value below which this part of the values lies; zero for none.
pub(crate) fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = (sorted.len().saturating_sub(1) as f64 * part).round() as usize;
    sorted.get(place).copied().unwrap_or_default()
}

/// Drops the most negative coefficient until none is left.
fn solve_weighted<const N: usize>(equations: &[Equation<N>], weights: &[f64]) -> [f64; N] {
    let mut used = [true; N];
    loop {
        let found = least_squares(equations, weights, &used);
        let worst = (0..N).filter(|&it| found[it] < 0.0).min_by(|&a, &b| found[a].total_cmp(&found[b]));
        match worst {
            Some(worst) => used[worst] = false,
            None => return found,
        }
    }
}

/// By normal equations, with columns scaled to one: a handful of unknowns of which all are well apart.
fn least_squares<const N: usize>(equations: &[Equation<N>], weights: &[f64], used: &[bool; N]) -> [f64; N] {
    let scaled = |equation: &Equation<N>, weight: f64| {
        let factor = weight.sqrt();
        (equation.terms.map(|it| it * factor), equation.sum * factor)
    };
    let mut norms = [0.0; N];
    for (equation, &weight) in equations.iter().zip(weights) {
        let (terms, _) = scaled(equation, weight);
        (0..N).for_each(|column| norms[column] += terms[column] * terms[column]);
    }
    let norms = norms.map(f64::sqrt);
    let is_used = |column: usize| used[column] && norms[column] > 0.0;
    let (mut matrix, mut right) = ([[0.0; N]; N], [0.0; N]);
    for (equation, &weight) in equations.iter().zip(weights) {
        let (terms, sum) = scaled(equation, weight);
        for row in (0..N).filter(|&it| is_used(it)) {
            right[row] += terms[row] / norms[row] * sum;
            for column in (0..N).filter(|&it| is_used(it)) {
                matrix[row][column] += terms[row] / norms[row] * terms[column] / norms[column];
            }
        }
    }
    (0..N).filter(|&it| !is_used(it)).for_each(|it| matrix[it][it] = 1.0);
    let mut found = eliminate(matrix, right);
    (0..N).for_each(|it| found[it] = if is_used(it) { found[it] / norms[it] } else { 0.0 });
    found
}

/// Gauss with pivots. A column that depends on others gets zero.
fn eliminate<const N: usize>(mut matrix: [[f64; N]; N], mut right: [f64; N]) -> [f64; N] {
    /// Columns have length one: below this a pivot is only rounding.
    const PIVOT_MIN: f64 = 1e-10;
    for step in 0..N {
        let pivot = (step..N).max_by(|&a, &b| matrix[a][step].abs().total_cmp(&matrix[b][step].abs()));
        let pivot = pivot.unwrap_or(step);
        matrix.swap(step, pivot);
        right.swap(step, pivot);
        if matrix[step][step].abs() < PIVOT_MIN {
            continue;
        }
        for row in step + 1..N {
            let factor = matrix[row][step] / matrix[step][step];
            let above = matrix[step];
            matrix[row].iter_mut().zip(above).for_each(|(it, above)| *it -= factor * above);
            right[row] -= factor * right[step];
        }
    }
    let mut found = [0.0; N];
    for row in (0..N).rev() {
        let rest: f64 = (row + 1..N).map(|it| matrix[row][it] * found[it]).sum();
        let pivot = matrix[row][row];
        found[row] = if pivot.abs() < PIVOT_MIN { 0.0 } else { (right[row] - rest) / pivot };
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn equations(noise: impl Fn(usize) -> f64) -> Vec<Equation<3>> {
        let terms = |index: usize| [1.0, index as f64, (index * index) as f64];
        let sum = |it: [f64; 3], index| (5.0 + 0.5 * it[1] + 0.01 * it[2]) * (1.0 + noise(index));
        (1..40).map(|index| Equation { terms: terms(index), sum: sum(terms(index), index) }).collect()
    }

    #[track_caller]
    fn check(found: [f64; 3], expected: [f64; 3], tolerance: f64) {
        let near = found.iter().zip(expected).all(|(it, wanted)| (it - wanted).abs() <= tolerance * wanted);
        assert!(near, "{found:?}");
    }

    #[test]
    fn exact_sums_give_exact_coefficients() {
        check(solve(&equations(|_| 0.0)), [5.0, 0.5, 0.01], 1e-6);
    }

    #[test]
    fn an_outlier_counts_little() {
        let disturbed = |index| if index % 10 == 5 { 9.0 } else { 0.001 * (index % 3) as f64 };
        check(solve(&equations(disturbed)), [5.0, 0.5, 0.01], 0.03);
    }

    #[test]
    fn a_disturbed_engine_is_fitted_to_its_mean() {
        // Half of the sums are as they should be, half are twice that.
        let found = solve(&equations(|index| (index % 2) as f64));
        for equation in equations(|_| 0.5).iter().skip(4) {
            let error = equation.error(&found);
            assert!(error.abs() < 0.08, "{equation:?}: {error:+.3}");
        }
    }

    #[test]
    fn no_coefficient_is_negative() {
        let falling: Vec<Equation<2>> =
            (1..10).map(|it| Equation { terms: [1.0, it as f64], sum: 20.0 - it as f64 }).collect();
        let found = solve(&falling);
        assert!(found[0] > 0.0 && found[1] == 0.0, "{found:?}");
        assert_eq!(solve::<2>(&[]), [0.0; 2]);
    }

    #[test]
    fn terms_that_nothing_tells_apart_are_finite() {
        let twins: Vec<Equation<2>> =
            (1..10).map(|it| Equation { terms: [it as f64; 2], sum: 3.0 * it as f64 }).collect();
        let found = solve(&twins);
        assert!((found[0] + found[1] - 3.0).abs() < 1e-6, "{found:?}");
    }

    #[test]
    fn quantiles_of_few_and_many() {
        assert_eq!(quantile(&[], 0.5), 0.0);
        assert_eq!(quantile(&[3.0, 1.0, 2.0], 0.5), 2.0);
        assert_eq!(quantile(&[3.0, 1.0, 2.0], 1.0), 3.0);
    }
}
