//! Why an address has the owner that it has, for people.

/// The last change of who announces an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Why {
    /// Nobody announced it.
    Free = 1,
    /// Its owner gave it up, and may not announce it any more.
    Released = 2,
    /// Its owner left it to this node, or to another one that comes first.
    HandedOver = 3,
    /// Who it was left to did not take it.
    TakenBack = 4,
    /// Its owner answered neither heartbeats nor probes.
    OwnerSilent = 5,
    /// Its owner's agent was dead for longer than the grace, so that the owner's kernel was silent about it.
    AgentDead = 6,
    /// This node left it to the candidate that comes first.
    Rebalance = 7,
    /// Another node's claim has a higher epoch.
    HigherEpoch = 8,
    /// This node may not announce it any more.
    NoCandidate = 9,
    /// This node was cut off from the segment.
    Isolated = 10,
    /// Who announced it before is there again, with an agent that is stopped or dead.
    OwnerBack = 11,
    /// A host that is no node of the cluster answers for it.
    AddressConflict = 12,
    /// Vestibule leaves this node.
    Leaving = 13,
    /// It had this owner already when this node learned of it.
    Found = 14,
}

impl Why {
    const ALL: [Self; 14] = [
        Self::Free,
        Self::Released,
        Self::HandedOver,
        Self::TakenBack,
        Self::OwnerSilent,
        Self::AgentDead,
        Self::Rebalance,
        Self::HigherEpoch,
        Self::NoCandidate,
        Self::Isolated,
        Self::OwnerBack,
        Self::AddressConflict,
        Self::Leaving,
        Self::Found,
    ];

    /// As the maps hold it. Codes are never used for something else.
    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    /// `None`: a later release wrote it.
    pub(crate) fn of(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|why| why.code() == code)
    }

    /// As `vestibule vips` shows it.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Released => "released",
            Self::HandedOver => "handed over",
            Self::TakenBack => "taken back",
            Self::OwnerSilent => "owner silent",
            Self::AgentDead => "owner's agent dead",
            Self::Rebalance => "rebalance",
            Self::HigherEpoch => "higher epoch",
            Self::NoCandidate => "no candidate",
            Self::Isolated => "isolated",
            Self::OwnerBack => "owner back",
            Self::AddressConflict => "address conflict",
            Self::Leaving => "leaving",
            Self::Found => "found",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_reason_has_a_code_and_a_text_of_its_own() {
        let codes: BTreeSet<u8> = Why::ALL.into_iter().map(Why::code).collect();
        let texts: BTreeSet<&str> = Why::ALL.into_iter().map(Why::text).collect();
        assert_eq!((codes.len(), texts.len()), (Why::ALL.len(), Why::ALL.len()));
        assert!(Why::ALL.into_iter().all(|why| Why::of(why.code()) == Some(why)));
        assert_eq!((Why::of(0), Why::of(255)), (None, None));
    }
}
