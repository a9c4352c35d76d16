//! Reasons of Events on Services, in MetalLB's words: dashboards and scripts know them.

/// Why an Event about a Service's addresses is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventReason {
    /// It was assigned an address.
    IpAllocated,
    /// It gets no address, or not the one that it asks for.
    AllocationFailed,
    /// It gets no address of its second family, which it can do without.
    AdditionalAssignFailed,
    /// It gives an address back.
    ClearAssignment,
    /// The addresses that it asks for cannot be read.
    LoadBalancerFailed,
    /// It has an annotation of MetalLB's first releases.
    DeprecatedAnnotation,
}

impl EventReason {
    /// As MetalLB writes it.
    pub fn text(self) -> &'static str {
        match self {
            Self::IpAllocated => "IPAllocated",
            Self::AllocationFailed => "AllocationFailed",
            Self::AdditionalAssignFailed => "AdditionalAssignFailed",
            Self::ClearAssignment => "ClearAssignment",
            Self::LoadBalancerFailed => "LoadBalancerFailed",
            Self::DeprecatedAnnotation => "deprecatedAnnotation",
        }
    }

    /// Whether the Event's type is `Warning` instead of `Normal`.
    pub fn is_warning(self) -> bool {
        match self {
            Self::AllocationFailed | Self::LoadBalancerFailed | Self::DeprecatedAnnotation => true,
            Self::IpAllocated | Self::AdditionalAssignFailed | Self::ClearAssignment => false,
        }
    }

    /// How MetalLB's text of a problem of this Service, `namespace/name`, begins.
    pub fn opening(self, service: &str) -> String {
        match self {
            Self::AllocationFailed => format!("Failed to allocate IP for {service:?}: "),
            Self::LoadBalancerFailed => "invalid requested loadbalancer IPs: ".to_owned(),
            Self::IpAllocated
            | Self::AdditionalAssignFailed
            | Self::ClearAssignment
            | Self::DeprecatedAnnotation => String::new(),
        }
    }
}
