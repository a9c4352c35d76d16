//! Takes the leader's Lease from its holder, and keeps it for a while: until then no controller leads.

use super::election::NAME;
use super::lease::{DURATION, MARGIN};
use super::writes::short;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, PostParams};
use std::time::{Duration, Instant};
use tokio::time::sleep;
use tracing::info;

/// How long no controller leads after the last renewal: the longest validity that they accept.
pub(super) const HOLD: Duration = DURATION.saturating_mul(4);
/// The former leader has noticed within this time that it does not lead any more, or could not write anyway.
const NOTICE: Duration = DURATION.saturating_sub(MARGIN);
/// Interval between two renewals.
const RENEW: Duration = Duration::from_secs(10);
/// The most attempts to write the Lease: its holder renews it meanwhile.
const ATTEMPTS: u32 = 10;

/// The Lease, held by this process.
pub(super) struct Preemption {
    api: Api<Lease>,
    identity: String,
    lease: Lease,
    renewed: Instant,
}

impl Preemption {
    /// Takes the Lease. Returns once its former holder writes nothing any more.
    pub(super) async fn take(client: &Client, namespace: &str, identity: String) -> Result<Self, String> {
        let api: Api<Lease> = Api::namespaced(client.clone(), namespace);
        let mut trouble = String::new();
        for _ in 0..ATTEMPTS {
            let before = api.get_opt(NAME).await.map_err(|error| short(&error))?;
            let former = before.as_ref().and_then(|lease| lease.spec.clone()).unwrap_or_default();
            let transitions = former.lease_transitions.unwrap_or_default().saturating_add(1);
            let metadata = before.as_ref().map(|lease| lease.metadata.clone());
            let lease = lease(metadata.unwrap_or_else(|| named(namespace)), &identity, transitions, HOLD);
            let written = match &before {
                Some(_) => api.replace(NAME, &PostParams::default(), &lease).await,
                None => api.create(&PostParams::default(), &lease).await,
            };
            match written {
                Ok(lease) => {
                    let former = former.holder_identity.filter(|holder| !holder.is_empty());
                    if let Some(former) = former {
                        info!(
                            former,
                            "waits until the former leader has noticed that it does not lead any more"
                        );
                        sleep(NOTICE).await;
                    }
                    return Ok(Self { api, identity, lease, renewed: Instant::now() });
                }
                Err(error) if is_conflict(&error) => trouble = short(&error),
                Err(error) => return Err(short(&error)),
            }
        }
        Err(trouble)
    }

    /// Renews the Lease, if it is due. An error: another process has it.
    pub(super) async fn keep(&mut self) -> Result<(), String> {
        if self.renewed.elapsed() < RENEW {
            return Ok(());
        }
        self.renew(HOLD).await
    }

    /// Renews the Lease for the last time: no controller leads within [`HOLD`] from now on.
    pub(super) async fn leave(mut self) -> Result<(), String> {
        self.renew(HOLD).await
    }

    /// Gives the Lease back: a controller may lead at once.
    pub(super) async fn give_back(mut self) -> Result<(), String> {
        self.identity.clear();
        self.renew(Duration::from_secs(1)).await
    }

    async fn renew(&mut self, lasts: Duration) -> Result<(), String> {
        let transitions =
            self.lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or_default();
        let lease = lease(self.lease.metadata.clone(), &self.identity, transitions, lasts);
        match self.api.replace(NAME, &PostParams::default(), &lease).await {
            Ok(lease) => {
                (self.lease, self.renewed) = (lease, Instant::now());
                Ok(())
            }
            Err(error) if is_conflict(&error) => {
                Err("another process has taken the leader's Lease".to_owned())
            }
            Err(error) => Err(short(&error)),
        }
    }
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 409))
}

fn named(namespace: &str) -> ObjectMeta {
    ObjectMeta { name: Some(NAME.to_owned()), namespace: Some(namespace.to_owned()), ..ObjectMeta::default() }
}

fn lease(metadata: ObjectMeta, holder: &str, transitions: i32, lasts: Duration) -> Lease {
    let now = MicroTime(Timestamp::now());
    Lease {
        metadata,
        spec: Some(LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: i32::try_from(lasts.as_secs()).ok(),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }),
    }
}
