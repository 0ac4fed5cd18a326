//! The tables: there, current and complete.

use super::finding::Finding;
use tramline::store::examine::Schema;

pub(super) fn check(schema: &Schema) -> Vec<Finding> {
    let known = schema.known;
    match schema.version {
        None => vec![Finding::serious(
            "schema",
            "there are no tables of Tramline",
            "check the URL, on PostgreSQL also schema=NAME, on Redis name=NAME; `tramline migrate` creates them",
        )],
        Some(version) if version > known => vec![Finding::serious(
            "schema",
            format!("the tables are at version {version}, this program knows {known}"),
            "run a newer version of the program",
        )],
        Some(version) if version < known => vec![Finding::warning(
            "schema",
            format!(
                "the tables are at version {version}, this program knows {known}; nothing else of them was looked at"
            ),
            "make a backup, then run `tramline migrate`, or start the server",
        )],
        Some(_) => schema.missing.iter().map(|name| missing(name)).collect(),
    }
}

fn missing(name: &str) -> Finding {
    Finding::serious(
        "schema",
        format!("{name} is missing"),
        format!(
            "restore a backup if it is a table; create an index as `tramline migrate --print --store URL | grep {name}` says"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity;
    use super::*;

    #[test]
    fn tables_are_there_and_current_and_complete() {
        let schema = |version, missing: &[&str]| Schema {
            version,
            known: 10,
            missing: missing.iter().map(ToString::to_string).collect(),
        };
        let worst = |schema: Schema| check(&schema).into_iter().map(|finding| finding.severity).max();
        assert_eq!(worst(schema(Some(10), &[])), None);
        assert_eq!(worst(schema(Some(9), &["tramline_new"])), Some(Severity::Warning));
        assert_eq!(worst(schema(Some(11), &[])), Some(Severity::Serious));
        assert_eq!(worst(schema(None, &["tramline_slice"])), Some(Severity::Serious));
        let found = check(&schema(Some(10), &["tramline_slice_claim"]));
        assert!(found[0].what.contains("tramline_slice_claim") && found[0].severity == Severity::Serious);
    }
}
