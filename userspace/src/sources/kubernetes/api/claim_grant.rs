//! What a Claim was granted and refused.

use super::super::value::{self, Wrong, wrong};
use crate::model::Pattern;
use crate::model::claim::{AskedProtocol, Grant, Granted, Refusal, Why};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What to do about a Claim that cannot be read: nobody but the controller writes it.
pub(in super::super) const REMEDY: &str =
    "run agents and controller of one release; the controller writes the Claim again when it is deleted";
/// [`ClaimRefusal::reason`] of what has a message.
const REFUSED: &str = "Refused";
/// The longest message. Users choose much of what it says.
const MESSAGE_CHARS_MAX: usize = 512;

/// Something that a claim has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimGrant {
    /// IP address.
    pub address: String,
    /// Port.
    pub port: i32,
    /// Server names: `a.example.com`, `*.example.com`, `*.example.com (one label)`, or `*` for all that nobody else has. Absent:
    /// to answer at the address and port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<String>,
    /// CIDRs of the clients that it has them for; empty: all. As `clientRanges` of the claim.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub client_ranges: Vec<String>,
    /// As `precedence` of the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precedence: Option<i64>,
    /// Since when it has it, in RFC 3339, UTC.
    pub since: String,
}

/// Something that a claim asked for and has not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRefusal {
    /// IP address; empty: it has none.
    pub address: String,
    /// Port.
    pub port: i32,
    /// Server names as written; absent: the address and port as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<String>,
    /// `Lost` (another has it), `Reserved` (nobody may have it), `NoRoom` (the maps are full; what was granted of it stays granted,
    /// and is served once there is room) or `Refused` (`message` says why).
    pub reason: String,
    /// Who has it: `TLSRoute namespace/name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Why it is refused, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Reads a protocol.
pub(in super::super) fn protocol(text: &str) -> Result<AskedProtocol, Wrong> {
    AskedProtocol::of_text(text).ok_or_else(|| wrong("is no protocol of a Claim", REMEDY))
}

/// Reads a pattern as [`Pattern`] is written.
fn pattern(text: &str) -> Result<Pattern, Wrong> {
    let Some(text) = text.strip_suffix(Pattern::ONE_LABEL) else { return value::pattern(text) };
    match value::pattern(text)? {
        Pattern::Wildcard(suffix) => Ok(Pattern::OneLabel(suffix)),
        Pattern::Exact(_) | Pattern::OneLabel(_) => Err(wrong("has no `*.` and so is of no label", REMEDY)),
    }
}

impl ClaimGrant {
    /// Reads it back.
    pub(in super::super) fn read(&self, protocol: AskedProtocol) -> Result<Grant, Wrong> {
        let (address, port) = (value::address(&self.address)?, value::port(self.port.into())?);
        let Some(protocol) = protocol.served() else {
            return Err(wrong("is granted with a protocol that this release does not serve", REMEDY));
        };
        let what = match self.names.as_deref() {
            None => Granted::Binding,
            Some("*") => Granted::Rest,
            Some(names) => Granted::Names(pattern(names)?),
        };
        Ok(Grant { address, port, protocol, what })
    }

    pub(super) fn of(grant: &Grant, now: &str) -> Self {
        let names = match &grant.what {
            Granted::Binding => None,
            Granted::Rest => Some("*".to_owned()),
            Granted::Names(pattern) => Some(pattern.to_string()),
        };
        let (address, port) = (grant.address.to_string(), grant.port.into());
        Self { address, port, names, since: now.to_owned(), ..Self::default() }
    }

    /// What is granted, without since when.
    pub(super) fn key(&self) -> impl Ord + '_ {
        (&self.address, self.port, self.names.as_deref(), &self.client_ranges, self.precedence)
    }
}

impl ClaimRefusal {
    pub(super) fn of(refusal: &Refusal) -> Self {
        let mut this = Self {
            address: refusal.address.map(|address| address.to_string()).unwrap_or_default(),
            port: refusal.port.into(),
            names: refusal.names.as_ref().map(Pattern::to_string),
            ..Self::default()
        };
        this.reason = match &refusal.why {
            Why::Lost(owner) => {
                this.owner = Some(owner.to_string());
                "Lost"
            }
            Why::Reserved => "Reserved",
            Why::NoRoom => "NoRoom",
            Why::Refused(why) => {
                this.message = Some(why.chars().take(MESSAGE_CHARS_MAX).collect());
                REFUSED
            }
        }
        .to_owned();
        this
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ServerName;
    use serde_json::json;

    #[test]
    fn patterns_are_read_as_they_are_written() {
        let name = |text| ServerName::new(text).unwrap();
        for kind in [Pattern::Exact, Pattern::OneLabel, Pattern::Wildcard] {
            let written = kind(name("a.example.com"));
            assert_eq!(pattern(&written.to_string()).unwrap(), written);
        }
        assert!(pattern("a.example.com (one label)").is_err() && pattern(" (one label)").is_err());
    }

    /// Agents of former releases read no Claim whose refusals have no address or port.
    #[test]
    fn a_refusal_without_an_address_says_so_by_an_empty_one_and_its_message_is_bounded() {
        let why = Why::Refused("x".repeat(4 * MESSAGE_CHARS_MAX).into());
        let refusal = ClaimRefusal::of(&Refusal { address: None, port: 443, names: None, why });
        let message = "x".repeat(MESSAGE_CHARS_MAX);
        let written = json!({"address": "", "port": 443, "reason": "Refused", "message": message});
        assert_eq!(serde_json::to_value(&refusal).unwrap(), written);
    }
}
