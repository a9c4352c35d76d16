//! Acquires and renews the leader's Lease.

use super::lease::{Candidate, DURATION, MARGIN, PERIOD, Record, Step};
use super::writes::short;
use crate::status::cut;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, PostParams};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tracing::{info, warn};

/// Name of the Lease.
pub(super) const NAME: &str = "vestibule-controller";
/// The annotation of the Lease that says why not all Claims are written, and since when.
pub(super) const UNMARKED: &str = "vestibule.dev/claims-incomplete";
/// The most bytes of that.
const UNMARKED_BYTES_MAX: usize = 1024;
/// Time limit of one request: well below [`MARGIN`].
pub(super) const REQUEST: Duration = MARGIN.saturating_sub(Duration::from_secs(1));

/// Competes for the Lease.
pub(super) struct Election {
    api: Api<Lease>,
    candidate: Candidate,
    /// `acquireTime`, while this process holds the Lease.
    acquired: Option<MicroTime>,
    told: watch::Sender<Option<Instant>>,
    /// Why not all Claims are written, and since when; empty: they are.
    unmarked: watch::Receiver<String>,
    /// The last error, so that the same one is logged only once.
    trouble: Option<String>,
}

impl Election {
    /// `unmarked`: why not all Claims are written, for who reads the Lease; empty: they are. Also returns a receiver of the time until which this process leads; `None`: it does not lead.
    pub(super) fn new(
        client: Client,
        namespace: &str,
        identity: String,
        unmarked: watch::Receiver<String>,
    ) -> (Self, watch::Receiver<Option<Instant>>) {
        let (told, leads) = watch::channel(None);
        let (api, candidate) = (Api::namespaced(client, namespace), Candidate::new(identity));
        (Self { api, candidate, acquired: None, told, unmarked, trouble: None }, leads)
    }

    /// Acquires or renews the Lease every [`PERIOD`] until `end`, then releases it.
    pub(super) async fn run(&mut self, end: impl Future<Output = ()>) {
        let mut end = std::pin::pin!(end);
        loop {
            let outcome = tokio::time::timeout(REQUEST, self.round()).await;
            let trouble = match outcome {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(short(&error)),
                Err(_) => Some("the API server does not answer".to_owned()),
            };
            if let Some(trouble) = trouble.as_ref().filter(|trouble| Some(*trouble) != self.trouble.as_ref())
            {
                warn!(lease = NAME, "the leader's Lease cannot be looked at: {trouble}");
            }
            self.trouble = trouble;
            self.tell();
            tokio::select! {
                () = tokio::time::sleep(PERIOD) => {}
                () = &mut end => break,
            }
        }
        // Before another controller may lead.
        self.candidate.rest();
        self.tell();
        if let Ok(Err(error)) = tokio::time::timeout(REQUEST, self.give_back()).await {
            warn!(lease = NAME, "the leader's Lease was not given back: {}", short(&error));
        }
        self.candidate.refused();
    }

    fn tell(&self) {
        let leads = self.candidate.leads_until();
        let is_news = self.told.borrow().is_some() != leads.is_some();
        if is_news {
            let state = if leads.is_some() { "leads" } else { "does not lead any more" };
            info!(identity = self.candidate.identity(), "{state}");
        }
        self.told.send_replace(leads);
    }

    async fn round(&mut self) -> Result<(), kube::Error> {
        if self.candidate.step(Instant::now()) == Step::Look {
            let lease = self.api.get_opt(NAME).await?;
            self.candidate.looked(lease.as_ref().map(record), Instant::now());
        }
        let sent = Instant::now();
        let written = match self.candidate.step(sent) {
            Step::Look => return Ok(()),
            Step::Create => {
                let lease = self.lease(None, 0, true);
                self.api.create(&PostParams::default(), &lease).await
            }
            Step::Update { version, transitions, takes } => {
                let lease = self.lease(Some(version), transitions, takes);
                self.api.replace(NAME, &PostParams::default(), &lease).await
            }
        };
        match written {
            Ok(lease) => {
                self.candidate.wrote(record(&lease), sent);
                self.acquired = lease.spec.and_then(|spec| spec.acquire_time);
                Ok(())
            }
            // Another controller was faster, or the Lease was deleted: look first.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                self.candidate.refused();
                let lease = self.api.get_opt(NAME).await?;
                self.candidate.looked(lease.as_ref().map(record), Instant::now());
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    async fn give_back(&mut self) -> Result<(), kube::Error> {
        let Some((version, transitions)) = self.candidate.to_give_back() else { return Ok(()) };
        let mut lease = self.lease(Some(version.to_owned()), transitions, false);
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
        }
        self.api.replace(NAME, &PostParams::default(), &lease).await?;
        info!("the leader's Lease is given back");
        Ok(())
    }

    fn lease(&self, version: Option<String>, transitions: i32, takes: bool) -> Lease {
        let now = MicroTime(Timestamp::now());
        let acquired = self.acquired.clone().filter(|_| !takes).unwrap_or_else(|| now.clone());
        let labels = [("app.kubernetes.io/name", "vestibule"), ("app.kubernetes.io/component", "controller")];
        Lease {
            metadata: ObjectMeta {
                name: Some(NAME.to_owned()),
                namespace: self.api.namespace().map(str::to_owned),
                resource_version: version,
                labels: Some(labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into()),
                annotations: unmarked(&self.unmarked.borrow()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.candidate.identity().to_owned()),
                lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
                acquire_time: Some(acquired),
                renew_time: Some(now),
                lease_transitions: Some(transitions),
                ..LeaseSpec::default()
            }),
        }
    }
}

/// Returns the annotations that say why not all Claims are written.
pub(super) fn unmarked(why: &str) -> Option<BTreeMap<String, String>> {
    (!why.is_empty()).then(|| [(UNMARKED.to_owned(), cut(why, UNMARKED_BYTES_MAX).to_owned())].into())
}

fn record(lease: &Lease) -> Record {
    let spec = lease.spec.clone().unwrap_or_default();
    let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    Record {
        holder: spec.holder_identity.unwrap_or_default(),
        duration: Duration::from_secs(seconds.unwrap_or_default()),
        renewed: spec.renew_time.map(|time| time.0.to_string()).unwrap_or_default(),
        transitions: spec.lease_transitions.unwrap_or_default(),
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
    }
}
