//! Patterns that overlap, and patterns that are wider than others.

use crate::model::Pattern;

/// A pattern as a key that is cheap to make: its kind, and its name or suffix. The empty wildcard matches every
/// name.
pub(super) type Key<'a> = (Shape, &'a str);

/// The kind of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Shape {
    Exact,
    OneLabel,
    AnyDepth,
}

/// Returns the key of a pattern; `None` matches every name.
pub(super) fn key(pattern: Option<&Pattern>) -> Key<'_> {
    match pattern {
        Some(Pattern::Exact(name)) => (Shape::Exact, name.as_str()),
        Some(Pattern::OneLabel(suffix)) => (Shape::OneLabel, suffix.as_str()),
        Some(Pattern::Wildcard(suffix)) => (Shape::AnyDepth, suffix.as_str()),
        None => (Shape::AnyDepth, ""),
    }
}

/// Returns the patterns that match everything that a pattern matches and more, the narrowest first: one label
/// before the rest of a name, then the wildcards of any depth. The empty one is last.
pub(super) fn above(pattern: &Pattern) -> impl Iterator<Item = Key<'_>> {
    let (Pattern::Exact(name) | Pattern::OneLabel(name) | Pattern::Wildcard(name)) = pattern;
    let name = name.as_str();
    let first = match pattern {
        Pattern::Exact(_) => name.split_once('.').map(|(_, rest)| (Shape::OneLabel, rest)),
        Pattern::OneLabel(_) => Some((Shape::AnyDepth, name)),
        Pattern::Wildcard(_) => None,
    };
    let wildcards = name.match_indices('.').map(|(dot, _)| (Shape::AnyDepth, &name[dot + 1..]));
    first.into_iter().chain(wildcards).chain([(Shape::AnyDepth, "")])
}

/// Returns the pattern of the names that both a listener and a route match: one of the two. A pattern of
/// `None` matches every name.
pub(super) fn intersection<'a>(
    listener: Option<&'a Pattern>,
    route: Option<&'a Pattern>,
) -> Option<Option<&'a Pattern>> {
    let (Some(own), Some(written)) = (listener, route) else { return Some(listener.or(route)) };
    if own.covers(written) {
        Some(route)
    } else if written.covers(own) {
        Some(listener)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Option<Pattern> {
        (!text.is_empty()).then(|| super::super::tests::pattern(text))
    }

    #[test]
    fn intersections_are_the_narrower_of_two_patterns_that_overlap() {
        // Columns: listener, route, what both match (`-`: nothing). `+.` is one label.
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
            ("", "+.example.com", "+.example.com"),
            ("*.example.com", "+.example.com", "+.example.com"),
            ("*.com", "+.example.com", "+.example.com"),
            ("*.example.com", "+.a.example.com", "+.a.example.com"),
            ("*.example.com", "+.com", "-"),
            ("*.a.example.com", "+.example.com", "-"),
            ("a.example.com", "+.example.com", "a.example.com"),
            ("example.com", "+.example.com", "-"),
            ("a.b.example.com", "+.example.com", "-"),
            ("com", "+.com", "-"),
            ("+.example.com", "+.example.com", "+.example.com"),
            ("+.example.com", "*.example.com", "+.example.com"),
            ("+.example.com", "*.com", "+.example.com"),
            ("+.example.com", "+.a.example.com", "-"),
            ("+.example.com", "+.com", "-"),
        ];
        for (listener, route, both) in table {
            let (listener, route) = (pattern(listener), pattern(route));
            let expected = if both == "-" { None } else { Some(pattern(both)) };
            let found = intersection(listener.as_ref(), route.as_ref()).map(Option::<&Pattern>::cloned);
            assert_eq!(found, expected, "{listener:?} {route:?}");
        }
    }

    #[test]
    fn above_a_pattern_is_what_covers_it_the_narrowest_first() {
        let all = ["a.b.c", "b.c", "c", "+.b.c", "+.c", "*.a.b.c", "*.b.c", "*.c", "+.a.b.c", "x.b.c", ""];
        for narrow in all.iter().filter_map(|text| pattern(text)) {
            let mut expected: Vec<Option<Pattern>> = all.iter().map(|text| pattern(text)).collect();
            expected.retain(|wide| match wide {
                Some(wide) => *wide != narrow && wide.covers(&narrow),
                None => true,
            });
            expected.sort_by_key(|wide| std::cmp::Reverse(wide.as_ref().map_or(0, Pattern::width)));
            let expected: Vec<Key<'_>> = expected.iter().map(|wide| key(wide.as_ref())).collect();
            let known = |key: &Key<'_>| all.iter().any(|text| super::key(pattern(text).as_ref()) == *key);
            let found: Vec<Key<'_>> = above(&narrow).filter(known).collect();
            assert_eq!(found, expected, "{narrow}");
        }
    }
}
