use tests::skip_without_root;

use super::scene::{Scene, until};

#[test]
fn the_last_state_serves_while_the_api_server_is_away_and_after_a_boot_without_it() {
    skip_without_root!();
    let mut scene = Scene::new();
    scene.tenant("a", "10.99.1.1");
    let wanted = ["tlsroute/tenant/a 10.99.1.1:6443"];
    let account = scene.kubectl().of_service_account(super::scene::RELEASE, "vestibule-agent").unwrap();
    let agent = scene.agent("first");
    until("the agent is ready", &[&agent], || agent.is_ready() && scene.backends() == wanted);

    scene.server.crash().unwrap();
    until("readiness says stale", &[&agent], || agent.probe("--readyz").1.contains("stale: "));
    assert!(agent.probe("--livez").0, "it lives");
    assert_eq!(scene.backends(), wanted);
    scene.server.launch().unwrap();
    until("it is ready again", &[&agent], || agent.is_ready());
    assert_eq!(scene.backends(), wanted);
    agent.end();

    // Power is lost: the maps are gone, the disk is kept, and the API server does not return.
    scene.server.crash().unwrap();
    assert!(scene.vestibule().arg("detach").status().unwrap().success());
    assert_eq!(scene.backends(), [""; 0]);
    let agent = scene.agent_by("booted", account.kubeconfig());
    until("the state of the last boot is in the maps", &[&agent], || scene.backends() == wanted);
    let (ready, why) = agent.probe("--readyz");
    assert!(!ready && why.contains("not synced"), "{why}");

    // The API server returns, and the agent catches up with the changes.
    scene.server.launch().unwrap();
    scene.tenant("b", "10.99.1.2");
    until("what is new is there too", &[&agent], || scene.backends().len() == 2 && agent.is_ready());
    agent.crash();

    // A damaged file is reported and not used.
    scene.server.crash().unwrap();
    assert!(scene.vestibule().arg("detach").status().unwrap().success());
    let file = scene.folder.path().join("state/desired");
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let agent = scene.agent_by("damaged", account.kubeconfig());
    until("the damage is reported", &[&agent], || agent.log().contains("checksum is wrong"));
    assert_eq!(scene.backends(), [""; 0]);
    scene.server.launch().unwrap();
    until("the API server's word is used", &[&agent], || !scene.backends().is_empty());
}
