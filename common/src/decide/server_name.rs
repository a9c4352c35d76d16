//! What a server name may hold, and names nobody may claim.
