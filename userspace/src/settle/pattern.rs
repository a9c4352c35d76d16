//! Patterns that overlap, and patterns that are wider than others.

use crate::model::{Pattern, ServerName};

/// A pattern as a key that is cheap to make: whether it is exact, and its name. The empty wildcard matches
/// every name.
pub(super) type Key<'a> = (bool, &'a str);

/// Returns the key of a pattern; `None` matches every name.
pub(super) fn key(pattern: Option<&Pattern>) -> Key<'_> {
    match pattern {
        Some(Pattern::Exact(name)) => (true, name.as_str()),
        Some(Pattern::Wildcard(suffix)) => (false, suffix.as_str()),
        None => (false, ""),
    }
}

/// Returns the wildcards that match everything that a pattern matches and more, the longest first. The empty
/// one is last.
pub(super) fn above(pattern: &Pattern) -> impl Iterator<Item = Key<'_>> {
    let (Pattern::Exact(name) | Pattern::Wildcard(name)) = pattern;
    let name = name.as_str();
    name.match_indices('.').map(|(dot, _)| (false, &name[dot + 1..])).chain([(false, "")])
}

/// Returns the pattern of the names that both a listener and a route match: one of the two. A pattern of
/// `None` matches every name.
pub(super) fn intersection<'a>(
    listener: Option<&'a Pattern>,
    route: Option<&'a Pattern>,
) -> Option<Option<&'a Pattern>> {
    let (Some(own), Some(written)) = (listener, route) else { return Some(listener.or(route)) };
    if covers(own, written) {
        Some(route)
    } else if covers(written, own) {
        Some(listener)
    } else {
        None
    }
}

/// Whether `wide` matches every name that `narrow` matches.
fn covers(wide: &Pattern, narrow: &Pattern) -> bool {
    match (wide, narrow) {
        (Pattern::Exact(_), Pattern::Wildcard(_)) => false,
        (Pattern::Exact(wide), Pattern::Exact(narrow)) => wide == narrow,
        (Pattern::Wildcard(wide), Pattern::Exact(narrow)) => is_below(narrow, wide),
        (Pattern::Wildcard(wide), Pattern::Wildcard(narrow)) => wide == narrow || is_below(narrow, wide),
    }
}

fn is_below(name: &ServerName, suffix: &ServerName) -> bool {
    name.as_str().strip_suffix(suffix.as_str()).is_some_and(|rest| rest.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Option<Pattern> {
        let name = |text| ServerName::new(text).unwrap();
        match text.strip_prefix("*.") {
            Some(suffix) => Some(Pattern::Wildcard(name(suffix))),
            None if text.is_empty() => None,
            None => Some(Pattern::Exact(name(text))),
        }
    }

    #[test]
    fn intersections_are_the_narrower_of_two_patterns_that_overlap() {
        // Columns: listener, route, what both match (`-`: nothing).
        let table = [
            ("", "", ""),
            ("", "*.com", "*.com"),
            ("a.example.com", "", "a.example.com"),
            ("abc.example.com", "abc.example.com", "abc.example.com"),
            ("abc.example.com", "*.example.com", "abc.example.com"),
            ("abc.example.com", "*.com", "abc.example.com"),
            ("abc.example.com", "*.abc.example.com", "-"),
            ("abc.example.com", "xabc.example.com", "-"),
            ("*.example.com", "a.b.example.com", "a.b.example.com"),
            ("*.example.com", "example.com", "-"),
            ("*.example.com", "badexample.com", "-"),
            ("*.example.com", "*.badexample.com", "-"),
            ("*.example.com", "*.example.com", "*.example.com"),
            ("*.example.com", "*.com", "*.example.com"),
            ("*.com", "*.example.com", "*.example.com"),
            ("*.example.com", "*.example.org", "-"),
        ];
        for (listener, route, both) in table {
            let (listener, route) = (pattern(listener), pattern(route));
            let expected = if both == "-" { None } else { Some(pattern(both)) };
            let found = intersection(listener.as_ref(), route.as_ref()).map(Option::<&Pattern>::cloned);
            assert_eq!(found, expected, "{listener:?} {route:?}");
        }
    }
}
