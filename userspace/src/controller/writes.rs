//! What the controller sends to the API server, one request each. Nothing here decides what to send.

use super::announcement::AnnouncementWrite;
use super::claim_store::{ClaimOutcome, ClaimWrite, Failure};
use super::keys::{self, Keys, SECRET, Schedule, Spare};
use super::kube_event::Note;
use crate::model::Kind;
use crate::sources::kubernetes::api::announcement::{self, Announcement};
use crate::sources::kubernetes::api::claim::{Claim, ClaimSpec, SETTLED, WITHDRAWN};
use crate::sources::kubernetes::api::node_state::NodeState;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ObjectReference, Secret};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions,
};
use kube::{Client, Error, ResourceExt};
use serde_json::json;
use std::io::Read;
use std::sync::Arc;
use std::time::Instant;
use tracing::{debug, warn};

/// The field manager, for `managedFields`.
pub(super) const MANAGER: &str = "vestibule-controller";
/// The reporting controller of Events.
const REPORTER: &str = "vestibule.dev/controller";

/// `apiVersion` of a kind that is served in this version.
pub(super) fn api_version(kind: Kind, version: &str) -> String {
    match kind.group() {
        "" => version.to_owned(),
        group => format!("{group}/{version}"),
    }
}

/// What the API calls a kind that is served in this version.
pub(super) fn resource(kind: Kind, version: &str) -> ApiResource {
    ApiResource {
        group: kind.group().to_owned(),
        version: version.to_owned(),
        api_version: api_version(kind, version),
        kind: kind.text().to_owned(),
        plural: kind.plural().to_owned(),
    }
}

/// Writes the finalizers of a GatewayClass, provided that it is as it was known.
pub(super) async fn finalizers(
    client: &Client,
    class: &str,
    served: &str,
    as_seen: &str,
    finalizers: &[Arc<str>],
) -> Result<(), Error> {
    let resource = resource(Kind::GatewayClass, served);
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let finalizers: Vec<&str> = finalizers.iter().map(|finalizer| &**finalizer).collect();
    let patch = json!({ "metadata": { "resourceVersion": as_seen, "finalizers": finalizers } });
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    match api.patch_metadata(class, &params, &Patch::Merge(&patch)).await {
        // It is gone, or the watch reports a newer one.
        Err(Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        outcome => outcome.map(|_| ()),
    }
}

/// Writes a Claim, provided that it is as it was known. A conflict counts as written, for the watch reports the newer one.
/// `Err`: why it failed.
pub(super) async fn claim(client: &Client, name: &str, write: ClaimWrite) -> Result<ClaimOutcome, Failure> {
    // Without the definition a Create fails for a long time; what is to be changed or deleted may just be gone.
    let done: &[u16] = if matches!(write, ClaimWrite::Create(_)) { &[409] } else { &[404, 409] };
    let api: Api<Claim> = Api::all(client.clone());
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let is_kept = |claim: &Claim, answer: Claim| answer.spec.is_same(&claim.spec);
    let answer = match write {
        ClaimWrite::Create(spec) => {
            let claim = Claim::new(name, spec);
            api.create(&params, &claim).await.map(|answer| is_kept(&claim, answer))
        }
        ClaimWrite::Replace(spec, version) => {
            let mut claim = Claim::new(name, spec);
            claim.metadata.resource_version = Some(version);
            api.replace(name, &params, &claim).await.map(|answer| is_kept(&claim, answer))
        }
        ClaimWrite::Delete { uid, version } => {
            let as_seen = Preconditions { uid: Some(uid), resource_version: Some(version) };
            let params = DeleteParams::default().preconditions(as_seen);
            api.delete(name, &params).await.map(|_| true)
        }
    };
    match answer {
        Ok(true) => debug!(claim = name, "written"),
        Ok(false) => return Ok(ClaimOutcome::Pruned),
        Err(Error::Api(status)) if done.contains(&status.code) => {}
        Err(error) => {
            warn!(claim = name, "the Claim cannot be written: {}", short(&error));
            let is_refusal = matches!(&error, Error::Api(status) if is_of_content(status.code));
            return Err(Failure { why: short(&error), is_refusal });
        }
    }
    Ok(ClaimOutcome::Written)
}

/// Whether an object is refused for what it says, as by a webhook, with whatever code that gives. Not so where others are refused as well:
/// the writer is not known, there is no such kind, or there is too much to do.
fn is_of_content(code: u16) -> bool {
    (400..500).contains(&code) && !matches!(code, 401 | 404 | 408 | 409 | 429)
}

/// Writes what is announced, provided that it is as it was known. A conflict counts as written, for the watch reports the newer one.
/// `Err`: why it failed.
pub(super) async fn announcement(client: &Client, write: AnnouncementWrite) -> Result<ClaimOutcome, String> {
    // As for Claims, above.
    let done: &[u16] = if matches!(write, AnnouncementWrite::Create(_)) { &[409] } else { &[404, 409] };
    let api: Api<Announcement> = Api::all(client.clone());
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let (spec, answer) = match write {
        AnnouncementWrite::Create(spec) => {
            let answer = api.create(&params, &Announcement::new(announcement::NAME, spec.clone())).await;
            (spec, answer)
        }
        AnnouncementWrite::Replace(spec, version) => {
            let mut object = Announcement::new(announcement::NAME, spec.clone());
            object.metadata.resource_version = Some(version);
            (spec, api.replace(announcement::NAME, &params, &object).await)
        }
    };
    match answer {
        Ok(object) if object.spec == spec => {
            debug!("what is announced is written");
            Ok(ClaimOutcome::Written)
        }
        Ok(_) => Ok(ClaimOutcome::Pruned),
        Err(Error::Api(status)) if done.contains(&status.code) => Ok(ClaimOutcome::Written),
        Err(error) => {
            warn!("what is announced cannot be written: {}", short(&error));
            Err(short(&error))
        }
    }
}

/// Marks all Claims as withdrawn. Returns the version since when they are; `None`: their definition is not there.
pub(super) async fn withdraw(client: &Client) -> Result<Option<u64>, Error> {
    let api: Api<Claim> = Api::all(client.clone());
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let by_name = ListParams::default().fields(&format!("metadata.name={SETTLED}"));
    loop {
        let stored = match api.list(&by_name).await {
            Ok(listed) => listed.items.into_iter().next(),
            Err(Error::Api(status)) if status.code == 404 => return Ok(None),
            Err(error) => return Err(error),
        };
        let is_new = stored.is_none();
        let mut mark = stored.unwrap_or_else(|| Claim::new(SETTLED, ClaimSpec::settled()));
        mark.annotations_mut().insert(WITHDRAWN.to_owned(), Timestamp::now().to_string());
        let written = match is_new {
            true => api.create(&params, &mark).await,
            false => api.replace(SETTLED, &params, &mark).await,
        };
        match written {
            Ok(mark) => {
                let version = mark.resource_version().and_then(|version| version.parse().ok());
                return Ok(Some(version.unwrap_or_default()));
            }
            // The former leader may just have written it.
            Err(Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns an error of the API server as one line.
pub(super) fn short(error: &Error) -> String {
    match error {
        // As of a webhook that gives none.
        Error::Api(status) if status.reason.is_empty() => format!("{}: {}", status.code, status.message),
        Error::Api(status) => format!("{} {}: {}", status.code, status.reason, status.message),
        other => other.to_string(),
    }
}

/// The result of writing an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// It exists, perhaps written by another controller.
    Yes,
    /// The API server refuses it.
    Refused,
    /// It failed, but may work later.
    Failed,
}

/// Writes an Event with its count.
pub(super) async fn event(client: &Client, instance: &str, note: &Note, count: u32) -> Told {
    let namespace = note.namespace();
    let api: Api<Event> = Api::namespaced(client.clone(), namespace);
    let now = MicroTime(Timestamp::now());
    if count > 1 {
        let series = json!({ "series": { "count": count, "lastObservedTime": now } });
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        match api.patch(&note.name(), &params, &Patch::Merge(&series)).await {
            Ok(_) => return Told::Yes,
            // The API server deletes Events after a while.
            Err(Error::Api(status)) if status.code == 404 => {}
            Err(error) => return told(&error, note),
        }
    }
    match api.create(&PostParams::default(), &new_event(note, namespace, instance, now)).await {
        Ok(_) => Told::Yes,
        Err(error) => told(&error, note),
    }
}

fn told(error: &Error, note: &Note) -> Told {
    match error {
        // The previous leader wrote it.
        Error::Api(status) if status.code == 409 => Told::Yes,
        Error::Api(status) if (400..429).contains(&status.code) => {
            let (kind, name) = (note.regarding.kind, &note.regarding.name);
            warn!(kind, name, "an Event is refused: {}", short(error));
            Told::Refused
        }
        _ => {
            warn!("an Event cannot be written: {}", short(error));
            Told::Failed
        }
    }
}

fn new_event(note: &Note, namespace: &str, instance: &str, now: MicroTime) -> Event {
    let about = &note.regarding;
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Event {
        metadata: ObjectMeta {
            name: Some(note.name()),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        event_time: Some(now),
        reporting_controller: Some(REPORTER.to_owned()),
        reporting_instance: Some(instance.to_owned()),
        action: Some("Judge".to_owned()),
        reason: Some(note.reason.to_owned()),
        type_: Some(if note.is_warning { "Warning" } else { "Normal" }.to_owned()),
        note: Some(note.text()),
        regarding: Some(ObjectReference {
            api_version: some(&about.api_version),
            kind: some(about.kind),
            name: some(&about.name),
            namespace: some(&about.namespace),
            uid: some(&about.uid),
            ..ObjectReference::default()
        }),
        ..Event::default()
    }
}

/// Creates the Secret, or changes the keys that are to be rotated.
pub(super) async fn keys(
    client: &Client,
    namespace: &str,
    schedule: Schedule,
    spare: Spare,
) -> Result<Spare, String> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let now = u64::try_from(Timestamp::now().as_second()).unwrap_or_default();
    let stored = api.get_opt(SECRET).await.map_err(|error| short(&error))?;
    let read = stored.as_ref().and_then(|secret| {
        let data = secret.data.as_ref()?;
        Keys::read(|name| data.get(name).map(|value| value.0.as_slice()))
    });
    let random = Randomness::open().map_err(|error| format!("no random numbers: {error}"))?;
    let (next, spare) = keys::change(read.as_ref(), schedule, spare, (now, Instant::now()), random.keys());
    let Some(next) = next else { return Ok(spare) };
    let mut secret = stored.clone().unwrap_or_else(|| new_secret(namespace));
    let data = next.data().into_iter().map(|(name, value)| (name.to_owned(), ByteString(value)));
    secret.data = Some(data.collect());
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let written = match &stored {
        None => api.create(&params, &secret).await,
        Some(_) => api.replace(SECRET, &params, &secret).await,
    };
    written.map_err(|error| short(&error))?;
    match (&stored, &read) {
        (None, _) => tracing::info!(secret = SECRET, "keys made"),
        (Some(_), None) => warn!(secret = SECRET, "the Secret held no usable keys; new ones are made"),
        (Some(_), Some(_)) => {
            tracing::info!(
                secret = SECRET,
                current = next.current,
                is_spare_new = next.is_spare_new,
                "keys changed"
            );
        }
    }
    Ok(keys::written(&next, Instant::now()))
}

fn new_secret(namespace: &str) -> Secret {
    let labels = [("app.kubernetes.io/name", "vestibule"), ("app.kubernetes.io/managed-by", MANAGER)];
    Secret {
        metadata: ObjectMeta {
            name: Some(SECRET.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into()),
            ..ObjectMeta::default()
        },
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

/// 32 bytes of the kernel's random number generator, enough for two keys.
struct Randomness([[u8; 16]; 2]);

impl Randomness {
    fn open() -> std::io::Result<Self> {
        let mut bytes = [[0; 16]; 2];
        let mut file = std::fs::File::open("/dev/urandom")?;
        for key in &mut bytes {
            file.read_exact(key)?;
        }
        Ok(Self(bytes))
    }

    /// Returns each key once.
    fn keys(self) -> impl FnMut() -> [u8; 16] {
        let mut keys = self.0.into_iter();
        move || keys.next().expect("nobody needs more than two keys")
    }
}

/// Deletes the NodeState of a node that is gone.
pub(super) async fn forget_node(client: &Client, node: &str, uid: &str, version: &str) -> Result<(), Error> {
    let api: Api<NodeState> = Api::all(client.clone());
    let as_seen = Preconditions { uid: Some(uid.to_owned()), resource_version: Some(version.to_owned()) };
    let params = DeleteParams::default().preconditions(as_seen);
    match api.delete(node, &params).await {
        Ok(_) => {
            tracing::info!(node, "the node is gone: its NodeState is taken away");
            Ok(())
        }
        Err(Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_that_others_would_get_too_is_not_of_the_object() {
        let is_of_content = |code: &u16| is_of_content(*code);
        assert_eq!([400, 402, 403, 413, 422].iter().filter(|code| is_of_content(code)).count(), 5);
        let all = [200, 401, 404, 408, 409, 429, 500, 503, 504];
        assert_eq!(all.iter().find(|code| is_of_content(code)), None);
    }
}
