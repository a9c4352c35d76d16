//! Requests that write the status of an object, or the object itself, one write each. Nothing here decides what to send.

use super::queue::{Outcome, Whole, Write};
use super::writes::{MANAGER, resource, short};
use crate::model::ObjectRef;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions,
};
use kube::{Client, Error};
use serde_json::json;
use tracing::{debug, warn};

/// Writes what is to be written of an object: its status, or the object itself.
pub(super) async fn write(client: &Client, object: &ObjectRef, version: &str, write: &Write) -> Outcome {
    let resource = resource(object.kind, version);
    let api: Api<DynamicObject> = match object.kind.is_namespaced() {
        true => Api::namespaced_with(client.clone(), &object.name.namespace, &resource),
        false => Api::all_with(client.clone(), &resource),
    };
    match &write.whole {
        None => patched(&api, object, write).await,
        Some(Whole::Create(metadata)) => made(&api, &resource, object, metadata, write).await,
        Some(Whole::Delete(uid)) => deleted(&api, object, uid).await,
    }
}

/// Makes an object, and writes its status, which the API server takes by itself alone.
async fn made(
    api: &Api<DynamicObject>,
    resource: &ApiResource,
    object: &ObjectRef,
    metadata: &serde_json::Value,
    write: &Write,
) -> Outcome {
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let mut new = DynamicObject::new(&object.name.name, resource);
    match serde_json::from_value::<ObjectMeta>(metadata.clone()) {
        Ok(metadata) => new.metadata = ObjectMeta { name: new.metadata.name.take(), ..metadata },
        Err(error) => {
            warn!(%object, "it cannot be made: {error}");
            return Outcome::Failed;
        }
    }
    let made = match api.create(&params, &new).await {
        Ok(made) => made,
        Err(error) => {
            warn!(%object, "it cannot be made: {}", short(&error));
            return Outcome::Failed;
        }
    };
    debug!(%object, "made");
    let version = made.metadata.resource_version.unwrap_or_default();
    let of_new = Write { whole: None, version, ..write.clone() };
    // If that fails, the watch reports an object whose status is not right.
    patched(api, object, &of_new).await;
    Outcome::Made
}

async fn deleted(api: &Api<DynamicObject>, object: &ObjectRef, uid: &str) -> Outcome {
    let as_seen = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    match api.delete(&object.name.name, &DeleteParams::default().preconditions(as_seen)).await {
        Ok(_) => {
            debug!(%object, "deleted");
            Outcome::Written
        }
        Err(Error::Api(status)) if matches!(status.code, 404 | 409) => Outcome::Conflict,
        Err(error) => {
            warn!(%object, "it cannot be deleted: {}", short(&error));
            Outcome::Failed
        }
    }
}

/// Writes a status, and with it annotations, provided that the object still has the version it was computed for.
async fn patched(api: &Api<DynamicObject>, object: &ObjectRef, write: &Write) -> Outcome {
    let mut metadata = json!({ "resourceVersion": write.version });
    if let Some(annotations) = &write.annotations {
        metadata["annotations"] = annotations.clone();
    }
    let patch = json!({ "metadata": metadata, "status": write.status });
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    match api.patch_status(&object.name.name, &params, &Patch::Merge(&patch)).await {
        Ok(new) => {
            let is_new = new.metadata.resource_version.as_ref() != Some(&write.version);
            debug!(%object, is_new, "status written");
            if is_new { Outcome::Written } else { Outcome::NoEffect }
        }
        Err(Error::Api(status)) if matches!(status.code, 404 | 409) => Outcome::Conflict,
        Err(error) => {
            warn!(%object, "the status cannot be written: {}", short(&error));
            Outcome::Failed
        }
    }
}
