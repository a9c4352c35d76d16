//! Takes the leader's Lease from its holder, and keeps it for a while: until then no controller leads.

use super::election::{NAME, REQUEST};
use super::lease::{DURATION, MARGIN};
use super::writes::short;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, PostParams};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

/// How long no controller leads after the last renewal: the longest validity that they accept.
pub(super) const HOLD: Duration = DURATION.saturating_mul(4);
/// The former leader has noticed within this time that it does not lead any more, or could not write anyway.
const NOTICE: Duration = DURATION.saturating_sub(MARGIN);
/// Interval between two renewals.
const RENEW: Duration = Duration::from_secs(10);
/// The most attempts to take the Lease: its holder renews it meanwhile, or the API server does not answer.
const ATTEMPTS: u32 = 10;
/// The most attempts to write the Lease for the last time.
const LAST_ATTEMPTS: u32 = 3;
/// The wait after a request that failed.
const AGAIN: Duration = Duration::from_secs(1);
/// How long renewals may fail: then the Lease is still valid for as long again, and no controller leads.
const TROUBLE: Duration = DURATION.saturating_mul(2);

/// The Lease, held by this process.
pub(super) struct Preemption {
    api: Api<Lease>,
    identity: String,
    lease: Lease,
    /// When the last renewal that succeeded was sent.
    renewed: Instant,
    /// When the last one that failed had failed.
    failed: Option<Instant>,
}

/// Why the Lease was not written.
enum Failure {
    /// Another process has changed it, or it is gone.
    Conflict(String),
    /// The API server does not answer, or not as expected.
    Trouble(String),
    /// It refuses, and will.
    Refused(String),
}

impl Failure {
    fn text(self) -> String {
        match self {
            Self::Conflict(why) | Self::Trouble(why) | Self::Refused(why) => why,
        }
    }
}

impl Preemption {
    /// Takes the Lease. Returns once its former holder writes nothing any more.
    pub(super) async fn take(client: &Client, namespace: &str, identity: String) -> Result<Self, String> {
        let api: Api<Lease> = Api::namespaced(client.clone(), namespace);
        let mut trouble = String::new();
        for _ in 0..ATTEMPTS {
            let sent = Instant::now();
            match take_once(&api, namespace, &identity).await {
                Ok((lease, former)) => {
                    if let Some(former) = former {
                        info!(
                            former,
                            "waits until the former leader has noticed that it does not lead any more"
                        );
                        sleep(NOTICE).await;
                    }
                    return Ok(Self { api, identity, lease, renewed: sent, failed: None });
                }
                Err(Failure::Refused(why)) => return Err(why),
                Err(Failure::Conflict(why)) => trouble = why,
                Err(Failure::Trouble(why)) => {
                    warn!(why, "the leader's Lease cannot be taken; tried again");
                    trouble = why;
                    sleep(AGAIN).await;
                }
            }
        }
        Err(trouble)
    }

    /// Renews the Lease, if it is due. An error: another process has it, or it could not be renewed for so long that one may soon have it.
    pub(super) async fn keep(&mut self) -> Result<(), String> {
        let is_due = self.renewed.elapsed() >= RENEW && self.failed.is_none_or(|at| at.elapsed() >= AGAIN);
        if !is_due {
            return Ok(());
        }
        match self.renew(HOLD).await {
            Err(Failure::Trouble(why)) if self.renewed.elapsed() < TROUBLE => {
                warn!(why, "the leader's Lease cannot be renewed; tried again");
                self.failed = Some(Instant::now());
                Ok(())
            }
            renewed => renewed.map_err(Failure::text),
        }
    }

    /// Renews the Lease for the last time: no controller leads within [`HOLD`] from now on.
    pub(super) async fn leave(self) -> Result<(), String> {
        self.renew_last(HOLD).await
    }

    /// Gives the Lease back: a controller may lead at once.
    pub(super) async fn give_back(mut self) -> Result<(), String> {
        self.identity.clear();
        self.renew_last(Duration::from_secs(1)).await
    }

    async fn renew_last(mut self, lasts: Duration) -> Result<(), String> {
        for _ in 1..LAST_ATTEMPTS {
            match self.renew(lasts).await {
                Err(Failure::Trouble(why)) => {
                    warn!(why, "the leader's Lease cannot be written; tried again");
                    sleep(AGAIN).await;
                }
                written => return written.map_err(Failure::text),
            }
        }
        self.renew(lasts).await.map_err(Failure::text)
    }

    /// A write that was not answered may have been done: the Lease then has another version, and is still ours.
    async fn renew(&mut self, lasts: Duration) -> Result<(), Failure> {
        match self.write(lasts).await {
            Err(Failure::Conflict(_)) => {
                let is = answer(self.api.get_opt(NAME)).await?.unwrap_or_default();
                let before = self.lease.spec.clone().unwrap_or_default();
                let spec = is.spec.clone().unwrap_or_default();
                let holder = spec.holder_identity.as_deref().unwrap_or_default();
                // What gives it back names nobody.
                let is_ours = before.lease_transitions == spec.lease_transitions
                    && (holder == self.identity || before.holder_identity.as_deref() == Some(holder));
                if !is_ours && self.identity.is_empty() {
                    // It was given back before, without an answer.
                    return Ok(());
                }
                if !is_ours {
                    return Err(Failure::Conflict("another process has taken the leader's Lease".to_owned()));
                }
                self.lease = is;
                self.write(lasts).await
            }
            written => written,
        }
    }

    async fn write(&mut self, lasts: Duration) -> Result<(), Failure> {
        let transitions =
            self.lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or_default();
        let lease = lease(self.lease.metadata.clone(), &self.identity, transitions, lasts);
        let sent = Instant::now();
        let written = answer(self.api.replace(NAME, &PostParams::default(), &lease)).await?;
        (self.lease, self.renewed, self.failed) = (written, sent, None);
        Ok(())
    }
}

/// Writes the Lease as ours once. Returns it, and who had it before.
async fn take_once(
    api: &Api<Lease>,
    namespace: &str,
    identity: &str,
) -> Result<(Lease, Option<String>), Failure> {
    let before = answer(api.get_opt(NAME)).await?;
    let former = before.as_ref().and_then(|lease| lease.spec.clone()).unwrap_or_default();
    let transitions = former.lease_transitions.unwrap_or_default().saturating_add(1);
    let metadata = before.as_ref().map(|lease| lease.metadata.clone());
    let lease = lease(metadata.unwrap_or_else(|| named(namespace)), identity, transitions, HOLD);
    let written = match before {
        Some(_) => answer(api.replace(NAME, &PostParams::default(), &lease)).await,
        None => answer(api.create(&PostParams::default(), &lease)).await,
    };
    Ok((written?, former.holder_identity.filter(|holder| !holder.is_empty())))
}

/// Waits for an answer of the API server, but not for ever.
async fn answer<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
    match timeout(REQUEST, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) if is_conflict(&error) => Err(Failure::Conflict(short(&error))),
        Ok(Err(error)) if is_refusal(&error) => Err(Failure::Refused(short(&error))),
        Ok(Err(error)) => Err(Failure::Trouble(short(&error))),
        Err(_) => Err(Failure::Trouble("the API server does not answer".to_owned())),
    }
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 409))
}

fn is_refusal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 401 | 403 | 422))
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

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{Method, StatusCode};
    use serde_json::{Value, json};
    use std::future::pending;
    use std::sync::{Arc, Mutex};

    /// What the API server does with requests.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Does {
        Answers,
        /// It does what is asked, and answers no write.
        IsSilent,
        /// It does nothing.
        Hangs,
        Fails,
        Refuses,
    }

    /// An API server with the Lease.
    #[derive(Clone)]
    struct Server(Arc<Mutex<(Does, Option<Value>, u32)>>);

    impl Server {
        fn start(holder: &str) -> (Self, Client) {
            let held = (!holder.is_empty()).then(|| {
                json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": NAME, "resourceVersion": "0"},
                    "spec": {"holderIdentity": holder, "leaseTransitions": 3}})
            });
            let this = Self(Arc::new(Mutex::new((Does::Answers, held, 0))));
            let server = this.clone();
            let answer = move |method: Method, body: axum::body::Bytes| {
                let server = server.clone();
                async move {
                    let (does, answer) = server.ask(&method, &body);
                    if does == Does::Hangs || (does == Does::IsSilent && method != Method::GET) {
                        pending::<()>().await;
                    }
                    answer
                }
            };
            (this, Client::new(axum::Router::new().fallback(answer), "default"))
        }

        fn ask(&self, method: &Method, body: &[u8]) -> (Does, (StatusCode, String)) {
            let (does, held, version) = &mut *self.0.lock().unwrap();
            let refusal = |code: StatusCode| {
                let reason = if code == StatusCode::NOT_FOUND { "NotFound" } else { "" };
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code.as_u16(), "message": "", "reason": reason});
                (*does, (code, status.to_string()))
            };
            match *does {
                Does::Hangs => return refusal(StatusCode::OK),
                Does::Fails => return refusal(StatusCode::INTERNAL_SERVER_ERROR),
                Does::Refuses => return refusal(StatusCode::FORBIDDEN),
                Does::Answers | Does::IsSilent => {}
            }
            if method != Method::GET {
                let mut new: Value = serde_json::from_slice(body).unwrap();
                let of = |lease: &Value| lease["metadata"]["resourceVersion"].clone();
                if held.as_ref().is_some_and(|held| of(held) != of(&new)) {
                    return refusal(StatusCode::CONFLICT);
                }
                *version += 1;
                new["metadata"]["resourceVersion"] = version.to_string().into();
                *held = Some(new);
            }
            match held {
                Some(held) => (*does, (StatusCode::OK, held.to_string())),
                None => refusal(StatusCode::NOT_FOUND),
            }
        }

        fn set(&self, does: Does) {
            self.0.lock().unwrap().0 = does;
        }

        fn holder(&self) -> String {
            self.0.lock().unwrap().1.as_ref().unwrap()["spec"]["holderIdentity"].as_str().unwrap().to_owned()
        }

        /// Does this for the time from now on.
        fn does_for(&self, does: Does, time: Duration) {
            let server = self.clone();
            server.set(does);
            tokio::spawn(async move {
                sleep(time).await;
                server.set(Does::Answers);
            });
        }
    }

    async fn take(client: &Client) -> Result<Preemption, String> {
        Preemption::take(client, "ns", "hook".to_owned()).await
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_taken_from_an_api_server_that_does_not_answer_at_first() {
        for does in [Does::Hangs, Does::IsSilent, Does::Fails] {
            let (server, client) = Server::start("leader");
            server.does_for(does, Duration::from_secs(8));
            let begun = Instant::now();
            let mut lease = take(&client).await.unwrap();
            assert!(begun.elapsed() >= NOTICE, "the former leader may still write");
            assert_eq!(server.holder(), "hook");
            let transitions = lease.lease.spec.as_ref().unwrap().lease_transitions.unwrap();
            assert_eq!(transitions > 4, does == Does::IsSilent, "it is taken from ourselves: {transitions}");
            lease.keep().await.unwrap();
            assert_eq!(lease.leave().await, Ok(()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_never_answers_is_given_up() {
        for does in [Does::Hangs, Does::IsSilent, Does::Fails] {
            let (server, client) = Server::start("leader");
            server.set(does);
            let begun = Instant::now();
            assert!(take(&client).await.is_err());
            assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_may_not_take_it_does_not_try_again() {
        let (server, client) = Server::start("leader");
        server.set(Does::Refuses);
        let begun = Instant::now();
        assert!(take(&client).await.is_err_and(|why| why.contains("403")));
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn renewals_may_fail_for_a_while() {
        for does in [Does::Hangs, Does::IsSilent, Does::Fails] {
            let (server, client) = Server::start("");
            let mut lease = take(&client).await.unwrap();
            sleep(RENEW).await;
            server.does_for(does, TROUBLE - RENEW - Duration::from_secs(7));
            let until = Instant::now() + TROUBLE;
            while Instant::now() < until {
                lease.keep().await.unwrap();
                sleep(Duration::from_millis(100)).await;
            }
            assert!(lease.renewed.elapsed() < RENEW + REQUEST, "{:?}", lease.renewed.elapsed());
            assert_eq!(lease.give_back().await, Ok(()));
            assert_eq!(server.holder(), "");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_could_not_be_renewed_for_long_is_held_no_more() {
        let (server, client) = Server::start("");
        let mut lease = take(&client).await.unwrap();
        server.set(Does::Fails);
        let begun = Instant::now();
        while lease.keep().await.is_ok() {
            assert!(begun.elapsed() < HOLD - MARGIN, "controllers may lead");
            sleep(Duration::from_millis(100)).await;
        }
        assert!(begun.elapsed() >= TROUBLE);
    }

    #[tokio::test(start_paused = true)]
    async fn what_another_process_has_taken_is_not_taken_back() {
        let (server, client) = Server::start("");
        let mut lease = take(&client).await.unwrap();
        take(&client).await.unwrap();
        server.0.lock().unwrap().1.as_mut().unwrap()["spec"]["holderIdentity"] = "other".into();
        sleep(RENEW).await;
        assert_eq!(lease.keep().await, Err("another process has taken the leader's Lease".to_owned()));
        assert!(lease.leave().await.is_err());
        assert_eq!(server.holder(), "other");
    }

    /// A controller may have taken it before that is tried again.
    #[tokio::test(start_paused = true)]
    async fn what_a_controller_has_taken_was_given_back() {
        let (server, client) = Server::start("");
        let lease = take(&client).await.unwrap();
        take(&client).await.unwrap();
        server.0.lock().unwrap().1.as_mut().unwrap()["spec"]["holderIdentity"] = "leader".into();
        assert_eq!(lease.give_back().await, Ok(()));
        assert_eq!(server.holder(), "leader");
    }

    /// The last write may have been done, too.
    #[tokio::test(start_paused = true)]
    async fn it_is_given_back_once_however_often_that_is_tried() {
        let (server, client) = Server::start("");
        let lease = take(&client).await.unwrap();
        server.does_for(Does::IsSilent, REQUEST + Duration::from_millis(500));
        assert_eq!(lease.give_back().await, Ok(()));
        assert_eq!(server.holder(), "");
    }
}
