//! The content of the maps that user space writes.

use common::maps::address::Address;
use common::maps::backend::Backend;
use common::maps::event::RouteCounters;
use common::maps::listener::{AddressRole, Listener, ListenerKey};
use common::maps::policy::PolicyKey;
use common::maps::route::{Label, LabelKey, MemberKey, NameKey, NameRoute, Page, PageKey, Route, SuffixKey};
use common::maps::settings::{Ids, Settings};
use common::maps::source::{Share, ShareKey};
use std::collections::HashMap;

/// The content of the maps that user space writes, in any order.
#[derive(Clone, Debug, Default)]
pub struct MapsContent {
    /// `SETTINGS[0]`.
    pub settings: Settings,
    /// `IDS[0]`.
    pub ids: Ids,
    /// `ADDRESSES`.
    pub addresses: Vec<(Address, AddressRole)>,
    /// `LISTENERS`.
    pub listeners: Vec<(ListenerKey, Listener)>,
    /// `ROUTES_EXACT` and `ROUTES_LONG`.
    pub names: Vec<(NameKey, NameRoute)>,
    /// `ROUTES_WILDCARD`.
    pub wildcards: Vec<(SuffixKey, NameRoute)>,
    /// Keys of `POLICIES`.
    pub policies: Vec<PolicyKey>,
    /// `ROUTES`.
    pub routes: Vec<(u32, Route)>,
    /// `MAGLEV`.
    pub pages: Vec<(PageKey, Page)>,
    /// `MEMBERS`.
    pub members: Vec<(MemberKey, u32)>,
    /// `BACKENDS`.
    pub backends: Vec<(u32, Backend)>,
    /// `LABELS`.
    pub labels: Vec<(LabelKey, Label)>,
    /// Keys of `ROUTE_COUNTERS`.
    pub counters: Vec<u32>,
}

/// What routes and sources have already, as the programs count it. Empty for a configuration that is not in force.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// `ROUTE_COUNTERS`.
    pub routes: HashMap<u32, RouteCounters>,
    /// `SHARES`.
    pub shares: HashMap<ShareKey, Share>,
}
