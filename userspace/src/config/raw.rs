//! The file as written. Only its shape is checked.

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
pub(super) struct RawConfig<'a> {
    pub(super) api_version: Option<Text<'a>>,
    pub(super) kind: Option<Text<'a>>,
    pub(super) settings: Option<RawSettings<'a>>,
    pub(super) listeners: Option<Vec<RawListener<'a>>>,
    pub(super) routes: Option<Vec<RawRoute<'a>>>,
}

/// The whole file, with its routes as text.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
pub(super) struct RawOutline<'a> {
    pub(super) api_version: Option<Text<'a>>,
    pub(super) kind: Option<Text<'a>>,
    pub(super) settings: Option<RawSettings<'a>>,
    pub(super) listeners: Option<Vec<RawListener<'a>>>,
    #[serde(borrow)]
    pub(super) routes: Option<Vec<&'a RawValue>>,
}

/// `settings`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
pub(super) struct RawSettings<'a> {
    pub(super) source_addresses: Option<Vec<Text<'a>>>,
    pub(super) source_ports: Option<Text<'a>>,
    pub(super) idle_timeout: Option<Text<'a>>,
    pub(super) hello_timeout: Option<Text<'a>>,
    pub(super) max_flows: Option<i64>,
    pub(super) max_names: Option<i64>,
    pub(super) max_hellos: Option<i64>,
    pub(super) flows_per_route: Option<i64>,
    pub(super) flows_per_source: Option<i64>,
    pub(super) connecting_per_source: Option<i64>,
    pub(super) l2: Option<RawL2>,
    pub(super) xdp_devices: Option<Vec<Text<'a>>>,
    pub(super) node_clients: Option<bool>,
}

/// `settings.l2`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RawL2 {
    pub(super) enabled: Option<bool>,
    pub(super) announce_rate: Option<i64>,
    pub(super) refresh_rate: Option<i64>,
}

/// `listeners[]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
pub(super) struct RawListener<'a> {
    pub(super) name: Option<Text<'a>>,
    pub(super) addresses: Option<Vec<Text<'a>>>,
    pub(super) port: Option<i64>,
    pub(super) protocol: Option<Text<'a>>,
    pub(super) default_route: Option<Text<'a>>,
}

/// `routes[]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
pub(super) struct RawRoute<'a> {
    pub(super) name: Option<Text<'a>>,
    pub(super) listeners: Option<Vec<Text<'a>>>,
    pub(super) hostnames: Option<Vec<Text<'a>>>,
    pub(super) source_ranges: Option<Vec<Text<'a>>>,
    pub(super) session_affinity: Option<Text<'a>>,
    pub(super) external_traffic_policy: Option<Text<'a>>,
    pub(super) backends: Option<Vec<RawBackend<'a>>>,
}

/// `routes[].backends[]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
pub(super) struct RawBackend<'a> {
    pub(super) address: Option<Text<'a>>,
    pub(super) port: Option<i64>,
    pub(super) weight: Option<i64>,
}

/// Text. Borrowed from the file where the file contains it without escapes.
#[derive(Clone, Debug)]
pub(super) struct Text<'a>(Cow<'a, str>);

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor).map(Self)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text")
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text))
    }
}
