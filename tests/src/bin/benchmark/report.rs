//! What is printed: a table of figures, each with its bar beside it.

/// A line of the table.
#[derive(Debug)]
pub(crate) struct Row {
    name: String,
    figure: String,
    bar: String,
}

pub(crate) fn row(name: String, figure: String, bar: &str) -> Row {
    let bar = bar.to_owned();
    Row { name, figure, bar }
}

/// The middle one; of two the mean.
///
/// # Panics
/// When there is none.
pub(crate) fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    let (low, high) = ((figures.len() - 1) / 2, figures.len() / 2);
    (figures[low] + figures[high]) / 2.0
}

/// Prints rows as a table of Markdown.
pub(crate) fn print(title: &str, rows: &[Row]) {
    crate::print(&format!(
        "\n### {title}\n\n| what | figure | bar |\n|---|---|---|"
    ));
    for row in rows {
        crate::print(&format!("| {} | {} | {} |", row.name, row.figure, row.bar));
    }
}
