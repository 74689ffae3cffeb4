"""Who may call what, and whose: every gRPC method and HTTP route, without credentials, with a wrong key, with a key of another
role, and by another owner. Methods come from the descriptors and the rules of access: a new one without a request here fails."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock as mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import grpc  # noqa: E402
from espalier.v1 import access_pb2, cluster_pb2, distillation_pb2, inference_pb2, models_pb2, ops_pb2, plan_pb2, program_pb2, recording_pb2, replay_pb2, session_pb2, storage_pb2, training_pb2  # noqa: E402
from open_inference import open_inference_pb2  # noqa: E402
from cluster import DATA, PROGRAMS, ROOT, Cluster, Failed, write_private  # noqa: E402
from grpc_calls import SERVICES, Calls, use  # noqa: E402

use(access_pb2, cluster_pb2, distillation_pb2, inference_pb2, models_pb2, ops_pb2, plan_pb2, recording_pb2, replay_pb2, session_pb2, storage_pb2, training_pb2, open_inference_pb2)
Code = grpc.StatusCode
KEYS = {
    "admin": "the-key-of-the-admin",
    "alice": "the-key-of-alice-here",
    "bob": "the-key-of-bob-elsewhere",
    "infer": "the-key-of-bobs-application",
    "worker": "the-key-of-the-workers",
    "monitor": "the-key-of-prometheus",
    "app": "the-key-of-alices-application",
}
FILE = f"""{KEYS["infer"]} role=infer owner=bob
{KEYS["admin"]}
{KEYS["alice"]} role=train,infer owner=alice
{KEYS["bob"]} role=train,infer owner=bob
{KEYS["worker"]} role=worker
{KEYS["monitor"]} role=monitor
{KEYS["app"]} role=infer owner=alice
"""
MODEL = "--model=llama:hidden=32,layers=1,heads=2,kv_heads=2,intermediate=64,positions=64"
OTHER_NAMES = {"GRPCInferenceService": "OpenInference"}


def rules():
    path = os.path.join(ROOT, "tools", "docs", "access_rules_json")
    return {rule["method"]: rule for rule in json.loads(subprocess.run([path], stdout=subprocess.PIPE, check=True).stdout)}


def outcome(call):
    """Code and replies of a call; a stream is read to its end."""
    try:
        reply = call()
        return Code.OK, list(reply) if hasattr(reply, "__next__") else [reply]
    except grpc.RpcError as error:
        return error.code(), [error.details()]


class OwnersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.keys = tempfile.TemporaryDirectory()
        path = os.path.join(cls.keys.name, "keys")
        write_private(path, FILE)
        with mock.patch.dict(os.environ, {"ESPALIER_TOKEN": KEYS["admin"]}):
            cls.cluster = Cluster(workers=0, daemon_flags=[f"--api-key-file={path}", "--local-workers=1"])
            cls.cluster.wait_for_workers(1)
        cls.as_("alice", cls.make_things)

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()
        cls.keys.cleanup()

    @classmethod
    def as_(cls, who, run):
        with mock.patch.dict(os.environ, {"ESPALIER_TOKEN": KEYS[who]}):
            return run()

    @classmethod
    def make_things(cls):
        """What Alice has: a dataset, a job and its model, a served model, a boost-tuning, a response."""
        cluster, text = cls.cluster, os.path.join(DATA, "genesis.txt")
        cluster.run("models", "upload", "hers-data", text)
        cls.job = cluster.train(MODEL, "-d", "artifact:hers-data", "--dataset-format=text", "--sequence-length=16", "-b", "2", "--steps=2", "--name=hers")
        assert cluster.wait_for_job(cls.job)["state"].upper() == "SUCCEEDED"
        cls.replay = cluster.run("replay", "hers", "--detach")["id"]
        cluster.cli("replay", "watch", cls.replay)
        cluster.run("serve", "hers", "--name=hers-served")
        with Calls(cluster.grpc, "Distillation", KEYS["alice"]) as calls:
            cls.tuning = calls.SubmitDistillation(
                distillation_pb2.SubmitDistillationRequest(
                    spec=distillation_pb2.DistillationSpec(
                        name="hers-tuned",
                        llm="hers",
                        ssms=[distillation_pb2.DistillationStart(artifact="hers")],
                        prompts="hers-data",
                        prompt_format=distillation_pb2.DistillationSpec.TEXT,
                        max_prompts=4,
                        prompt_tokens=8,
                        continuation_tokens=8,
                        steps=1,
                        expansion=[1],
                        optimizer=program_pb2.Optimizer(name="adam", learning_rate={"peak": 1e-3}),
                    )
                )
            ).job.id
        status, reply = cls.http("POST", "/v1/responses", {"model": "hers-served", "input": "In", "max_output_tokens": 4}, "alice")
        assert status == 200, reply
        cls.response = json.loads(reply)["id"]

    @classmethod
    def session_spec(cls):
        """Of a session with what is Alice's."""
        return training_pb2.TrainingSpec(
            name="hers",
            dataset=training_pb2.Dataset(uri="artifact:hers-data", format=training_pb2.Dataset.TEXT, sequence_length=16),
            init_artifact="hers",
            batch_size=2,
            optimizer=program_pb2.Optimizer(name="adam", learning_rate={"peak": 1e-3}),
        )

    @classmethod
    def http(cls, method, path, body=None, who=None, key=None):
        """`key` None: none."""
        return cls.cluster.request(method, path, None if body is None else json.dumps(body), token=KEYS[who] if who else key or "")

    def call(self, name, key, request):
        service, method = name.split("/")
        service = {short: full for full, short in OTHER_NAMES.items()}.get(service, service)
        with Calls(self.cluster.grpc, service, key) as calls:
            return outcome(lambda: getattr(calls, method)(request, timeout=60))

    def empty(self, name):
        service, method = name.split("/")
        service = {short: full for full, short in OTHER_NAMES.items()}.get(service, service)
        descriptor = SERVICES[service].methods_by_name[method]
        request = descriptor.input_type._concrete_class()
        return iter([request]) if descriptor.client_streaming else request

    def methods(self):
        return [f"{OTHER_NAMES.get(s.name, s.name)}/{m}" for s in SERVICES.values() if s.name != "Worker" for m in s.methods_by_name]

    def test_every_rpc_wants_a_key_with_the_role(self):
        table = rules()
        self.assertEqual(sorted(self.methods()), sorted(m for m in table if " " not in m))
        for name in self.methods():
            for key in (None, "the-key-of-nobody-here", KEYS["admin"][:-1]):
                self.assertEqual(self.call(name, key, self.empty(name))[0], Code.UNAUTHENTICATED, (name, key))
            for who, roles in (("bob", {"train", "infer"}), ("infer", {"infer"}), ("worker", {"worker"}), ("monitor", {"monitor"})):
                if table[name]["has_token"] or roles & set(table[name]["roles"].split(", ")):
                    continue
                self.assertEqual(self.call(name, KEYS[who], self.empty(name))[0], Code.PERMISSION_DENIED, (name, who))

    def test_every_route_wants_a_key_with_the_role(self):
        routes = [m.split(" ") for m in rules() if " " in m]
        self.assertGreater(len(routes), 20)
        for method, path in routes:
            path = path.replace("NAME", "hers-served").replace("ID", self.response)
            for key in (None, "the-key-of-nobody-here"):
                self.assertEqual(self.http(method, path, {} if method == "POST" else None, key=key)[0], 401, (method, path))
        for who, allowed in (("infer", {"infer"}), ("worker", {"worker"}), ("monitor", {"monitor"})):
            for name, rule in rules().items():
                if " " not in name or allowed & set(rule["roles"].split(", ")):
                    continue
                method, path = name.split(" ")
                path = path.replace("NAME", "hers-served").replace("ID", self.response)
                self.assertEqual(self.http(method, path, {} if method == "POST" else None, who)[0], 403, (name, who))

    def others(self):
        """How Bob's calls that name what is Alice's end, by method; OK: only if nothing of hers is in the reply."""
        spec = training_pb2.TrainingSpec(
            dataset=training_pb2.Dataset(uri="artifact:hers-data", format=training_pb2.Dataset.TEXT, sequence_length=16),
            init_artifact="hers",
            batch_size=2,
            steps=1,
        )
        job, none = {"job_id": self.job}, Code.NOT_FOUND
        session = {"session_id": self.session}
        tuning = distillation_pb2.DistillationRequest(id=self.tuning)
        serve = inference_pb2.ServeModelRequest(artifact="hers", name="his")
        model = "hers-served"
        return {
            "Training/Submit": (none, training_pb2.SubmitRequest(spec=spec)),
            "Training/DryRun": (none, training_pb2.DryRunRequest(spec=spec)),
            "Training/Watch": (none, training_pb2.WatchRequest(**job)),
            "Training/Get": (none, training_pb2.GetJobRequest(**job)),
            "Training/List": (Code.OK, training_pb2.ListJobsRequest()),
            "Training/Cancel": (none, training_pb2.CancelRequest(**job)),
            "Training/Resume": (none, training_pb2.ResumeRequest(**job)),
            "Training/Update": (none, training_pb2.UpdateJobRequest(**job, priority=5)),
            "Training/Delete": (none, training_pb2.DeleteJobRequest(**job)),
            "Training/Checkpoint": (none, training_pb2.CheckpointRequest(**job)),
            "Training/PushExamples": (none, iter([training_pb2.PushExamplesRequest(**job)])),
            "Recordings/List": (Code.OK, recording_pb2.ListRunsRequest()),
            "Recordings/Get": (none, recording_pb2.GetRunRequest(run=self.job)),
            "Recordings/ListValues": (none, recording_pb2.ListRunValuesRequest(run=self.job)),
            "Recordings/Diff": (none, recording_pb2.DiffRunsRequest(a=self.job, b=self.job)),
            "Replay/Estimate": (none, replay_pb2.EstimateReplayRequest(spec=replay_pb2.ReplaySpec(run=self.job))),
            "Replay/Start": (none, replay_pb2.StartReplayRequest(spec=replay_pb2.ReplaySpec(run=self.job))),
            "Replay/Watch": (none, replay_pb2.WatchReplayRequest(replay_id=self.replay)),
            "Replay/Cancel": (none, replay_pb2.CancelReplayRequest(replay_id=self.replay)),
            "Replay/Get": (none, replay_pb2.GetReplayRequest(replay_id=self.replay)),
            "Replay/Delete": (none, replay_pb2.DeleteReplayRequest(replay_id=self.replay)),
            "Replay/List": (Code.OK, replay_pb2.ListReplaysRequest()),
            "Replay/Query": (none, replay_pb2.QueryHistoryRequest(run=self.job)),
            "Sessions/Open": (none, session_pb2.OpenSessionRequest(spec=self.session_spec())),
            "Sessions/Run": (none, iter([session_pb2.SessionCommand(**session)])),
            "Sessions/Close": (none, session_pb2.CloseSessionRequest(**session)),
            "Sessions/List": (Code.OK, session_pb2.ListSessionsRequest()),
            "Planner/MakePlan": (none, plan_pb2.PlanRequest(onnx_artifact="hers")),
            "Planner/Explain": (none, plan_pb2.ExplainRequest(**job)),
            "Planner/Export": (none, plan_pb2.ExportRequest(**job)),
            "Models/Upload": (
                Code.ALREADY_EXISTS,
                iter([models_pb2.UploadRequest(header=models_pb2.UploadHeader(name="hers", kind=models_pb2.Artifact.MODEL, replace=True))]),
            ),
            "Models/List": (Code.OK, models_pb2.ListArtifactsRequest()),
            "Models/Get": (none, models_pb2.DownloadRequest(name="hers@1")),
            "Models/Delete": (none, models_pb2.DeleteArtifactRequest(name="hers-data")),
            "Models/Quantize": (none, models_pb2.QuantizeRequest(name="hers", weights="int8", out="his")),
            "Distillation/SubmitDistillation": (
                none,
                distillation_pb2.SubmitDistillationRequest(
                    spec=distillation_pb2.DistillationSpec(
                        name="his", llm="hers", prompts="hers-data", ssms=[distillation_pb2.DistillationStart(artifact="hers")]
                    )
                ),
            ),
            "Distillation/GetDistillation": (none, tuning),
            "Distillation/ListDistillations": (Code.OK, distillation_pb2.ListDistillationsRequest()),
            "Distillation/CancelDistillation": (none, tuning),
            "Distillation/ResumeDistillation": (none, tuning),
            "Inference/Generate": (none, inference_pb2.GenerateRequest(model=model, text="In")),
            "Inference/Embed": (none, inference_pb2.EmbedRequest(model=model, inputs=[inference_pb2.EmbedInput(text="In")])),
            "Inference/Cancel": (Code.OK, inference_pb2.CancelGenerateRequest(request_id="hers")),
            "Inference/Tokenize": (none, inference_pb2.TokenizeRequest(model=model, text="In")),
            "Inference/Detokenize": (none, inference_pb2.DetokenizeRequest(model=model, tokens=[1])),
            "Inference/Serve": (none, serve),
            "Inference/Unserve": (none, inference_pb2.UnserveModelRequest(name=model)),
            "Inference/ListServed": (Code.OK, inference_pb2.ListServedRequest()),
            "Inference/VerifyLossless": (none, inference_pb2.VerifyLosslessRequest(models=serve)),
            "Cluster/ListWorkers": (Code.OK, cluster_pb2.ListWorkersRequest()),
            "Cluster/Status": (Code.OK, cluster_pb2.ClusterStatusRequest()),
            "OpenInference/ModelReady": (none, open_inference_pb2.ModelReadyRequest(name=model)),
            "OpenInference/ModelMetadata": (none, open_inference_pb2.ModelMetadataRequest(name=model)),
            "OpenInference/ModelStatistics": (none, open_inference_pb2.ModelStatisticsRequest(name=model)),
            "OpenInference/ModelInfer": (none, open_inference_pb2.ModelInferRequest(model_name=model)),
        }

    # They name nothing that belongs to anyone.
    NOBODYS = {
        "Ops/List",
        "Ops/Infer",
        "Planner/Import",
        "Planner/Diff",
        "Planner/Profile",
        "Planner/Machines",
        "OpenInference/ServerLive",
        "OpenInference/ServerReady",
        "OpenInference/ServerMetadata",
    }

    def test_nothing_of_another_owner_can_be_named(self):
        with Calls(self.cluster.grpc, "Sessions", KEYS["alice"]) as calls:
            self.session = calls.Open(session_pb2.OpenSessionRequest(spec=self.session_spec(), wait_seconds=30, grace_seconds=300)).session_id
            self.addCleanup(self.call, "Sessions/Close", KEYS["alice"], session_pb2.CloseSessionRequest(session_id=self.session))
            self.assertEqual([s.owner for s in calls.List(session_pb2.ListSessionsRequest()).sessions], ["alice"])
        others, table = self.others(), rules()
        callable_by_bob = {name for name in self.methods() if {"train", "infer"} & set(table[name]["roles"].split(", "))}
        self.assertEqual(callable_by_bob, set(others) | self.NOBODYS)
        for name, (expected, request) in others.items():
            code, replies = self.call(name, KEYS["bob"], request)
            self.assertEqual(code, expected, (name, replies))
            if code == Code.OK:
                self.assertNotIn("hers", str(replies), name)
                self.assertNotIn(self.job, str(replies), name)
                self.assertNotIn(self.session, str(replies), name)
        # All of it is still there.
        code, replies = self.call("Sessions/Run", KEYS["alice"], iter([session_pb2.SessionCommand(session_id=self.session)]))
        self.assertEqual(code, Code.OK, replies)
        self.assertEqual(self.as_("alice", lambda: self.cluster.job(self.job))[0]["state"].upper(), "SUCCEEDED")
        status, answer = self.http("POST", "/v1/completions", {"model": "hers-served", "prompt": "In", "max_tokens": 2}, "alice")
        self.assertEqual(status, 200, answer)

    def test_nothing_of_another_owner_is_behind_a_route(self):
        bodies = {
            "/v1/completions": {"prompt": "In"},
            "/v1/chat/completions": {"messages": [{"role": "user", "content": "In"}]},
            "/v1/responses": {"input": "In"},
            "/v1/responses/input_tokens": {"input": "In"},
            "/v1/messages": {"messages": [{"role": "user", "content": "In"}], "max_tokens": 2},
            "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "In"}]},
            "/v1/embeddings": {"input": "In"},
            "/api/generate": {"prompt": "In"},
            "/api/embed": {"input": "In"},
            "/api/embeddings": {"prompt": "In"},
            "/api/chat": {"messages": [{"role": "user", "content": "In"}]},
            "/api/show": {},
            **{f"{v}/rerank": {"query": "In", "documents": ["In"]} for v in ("", "/v1", "/v2")},
            "/tokenize": {"prompt": "In"},
            "/detokenize": {"tokens": [1]},
            "/v2/models/NAME/infer": {"inputs": []},
        }
        # Refused to everyone, whatever they name.
        refused = [f"/api/{action}" for action in ("pull", "push", "create", "copy", "delete", "blobs/ID")]
        seen = 0
        for name, rule in rules().items():
            if " " not in name or not {"infer", "train"} & set(rule["roles"].split(", ")):
                continue
            method, route = name.split(" ")
            path = route.replace("NAME", "hers-served").replace("ID", self.response)
            if route in refused:
                self.assertEqual(self.http(method, path, {} if method == "POST" else None, "bob")[0], 501, name)
                continue
            if route == "/tokenizer_info":
                path += "?model=hers-served"
            if method == "POST" and "ID" not in route:
                self.assertIn(route, bodies, "give the new route a body here")
            body = dict(bodies.get(route, {}), model="hers-served") if method == "POST" else None
            status, answer = self.http(method, path, body, "bob")
            seen += 1
            if route != path or method == "POST":
                self.assertEqual(status, 404, (name, answer))
            else:
                self.assertEqual(status, 200, (name, answer))
                self.assertNotIn("hers", str(answer), name)
        self.assertGreater(seen, 15)
        # Nor without a name, where only one model is served.
        status, answer = self.http("POST", "/tokenize", {"prompt": "In"}, "bob")
        self.assertEqual(status, 400, answer)
        self.assertEqual(self.http("GET", f"/v1/responses/{self.response}", None, "alice")[0], 200)

    def test_owners_have_names_of_their_own_and_admins_have_all(self):
        owners = self.as_("bob", lambda: {a["owner"] for a in self.cluster.run("models")["artifacts"]})
        self.assertLessEqual(owners, {"bob", ""})
        admin = self.as_("admin", lambda: {a["name"]: a["owner"] for a in self.cluster.run("models")["artifacts"]})
        self.assertEqual(admin["hers"], "alice")
        with self.assertRaises(Failed) as taken:
            self.as_(
                "bob", lambda: self.cluster.train(MODEL, "-d", os.path.join(DATA, "genesis.txt"), "--sequence-length=16", "-b", "2", "--steps=2", "--name=hers")
            )
        self.assertIn("choose another name", taken.exception.err)
        # Shared by the admin: used by all, changed by none.
        self.as_("admin", lambda: self.cluster.run("models", "upload", "shared", os.path.join(DATA, "genesis.txt")))
        job = self.as_(
            "bob",
            lambda: self.cluster.train(MODEL, "-d", "artifact:shared", "--dataset-format=text", "--sequence-length=16", "-b", "2", "--steps=2", "--name=his"),
        )
        self.assertEqual(self.as_("bob", lambda: self.cluster.wait_for_job(job))["state"].upper(), "SUCCEEDED")
        code, why = self.call("Models/Delete", KEYS["bob"], models_pb2.DeleteArtifactRequest(name="shared"))
        self.assertEqual(code, Code.PERMISSION_DENIED, why)
        # What Bob has recorded needs it to be replayed.
        code, why = self.call("Models/Delete", KEYS["admin"], models_pb2.DeleteArtifactRequest(name="shared"))
        self.assertEqual((code, f"his@1 ({job})" in str(why)), (Code.FAILED_PRECONDITION, True), why)
        self.assertEqual(self.call("Models/Delete", KEYS["admin"], models_pb2.DeleteArtifactRequest(name="shared", force=True))[0], Code.OK)

    def test_a_dataset_for_validation_is_hers_too(self):
        spec = training_pb2.TrainingSpec(
            dataset=training_pb2.Dataset(uri="/anywhere", format=training_pb2.Dataset.TEXT, sequence_length=16),
            validation=training_pb2.Validation(dataset=training_pb2.Dataset(uri="artifact:hers-data")),
            batch_size=2,
            steps=1,
        )
        for method, request in (("Submit", training_pb2.SubmitRequest(spec=spec)), ("DryRun", training_pb2.DryRunRequest(spec=spec))):
            code, replies = self.call(f"Training/{method}", KEYS["bob"], request)
            self.assertEqual(code, Code.NOT_FOUND, replies)

    def test_two_owners_may_train_on_the_same_file(self):
        """Uploads are named by their content, and names are everyone's."""
        path = os.path.join(self.cluster.folder, "same.txt")
        with open(path, "w") as file:
            file.write("the same text for both of them. " * 40)
        datasets = set()
        for who in ("alice", "bob", "bob"):

            def train(who=who):
                job = self.cluster.wait_for_job(self.cluster.train(MODEL, "-d", path, "--sequence-length=16", "-b", "2", "--steps=1"))
                self.assertEqual(job["state"].upper(), "SUCCEEDED", job)
                return job["spec"]["dataset"]["uri"]

            datasets.add(self.as_(who, train))
        self.assertEqual(len(datasets), 2, datasets)
        # No name tells by its being taken that another owner has the content.
        with open(path, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        self.assertFalse([name for name in datasets if digest[:16] in name], datasets)
        # An admin's job does not depend on what users may delete.
        job = self.as_("admin", lambda: self.cluster.wait_for_job(self.cluster.train(MODEL, "-d", path, "--sequence-length=16", "-b", "2", "--steps=1")))
        self.assertNotIn(job["spec"]["dataset"]["uri"], datasets)

    def test_a_dry_run_leaves_no_artifact(self):
        path = os.path.join(self.cluster.folder, "once.txt")
        with open(path, "w") as file:
            file.write("a text that is planned for only. " * 40)

        def names():
            return {a["name"] for a in self.cluster.run("models")["artifacts"] if a["name"].startswith(("once", "borrowed", "kept"))}

        def dry_run(*flags):
            before = names()
            self.cluster.cli("train", MODEL, "-d", path, "--sequence-length=16", "-b", "2", "--steps=1", "--dry-run", *flags, check=not flags)
            self.assertEqual(names(), before)

        self.as_("alice", dry_run)
        self.as_("alice", lambda: dry_run("--pipeline-stages=7"))  # refused
        self.as_("alice", lambda: self.cluster.run("models", "upload", "kept", path))
        self.as_("alice", dry_run)

    def test_nobody_takes_the_name_of_a_job_to_come(self):
        number = 1 + max(int(job["id"].split("-")[1]) for job in self.as_("admin", lambda: self.cluster.run("jobs")["jobs"]))
        for name in (f"job-{number}", f"job-{number}@2", f"boost-{number}.round-1"):
            code, why = self.call(
                "Models/Upload", KEYS["bob"], iter([models_pb2.UploadRequest(header=models_pb2.UploadHeader(name=name, kind=models_pb2.Artifact.DATASET))])
            )
            self.assertEqual(code, Code.INVALID_ARGUMENT, (name, why))
        with self.assertRaisesRegex(Failed, "is kept for what a job"):
            self.as_(
                "bob",
                lambda: self.cluster.train(
                    MODEL, "-d", os.path.join(DATA, "genesis.txt"), "--sequence-length=16", "-b", "2", "--steps=1", f"--name=job-{number}"
                ),
            )

    def test_idempotency_keys_are_apart(self):
        delete = models_pb2.DeleteArtifactRequest(name="for-all", idempotency_key="a-key")
        self.as_("alice", lambda: self.cluster.run("models", "upload", "for-all", os.path.join(DATA, "genesis.txt")))
        self.assertEqual(self.call("Models/Delete", KEYS["alice"], delete)[0], Code.OK)
        self.assertEqual(self.call("Models/Delete", KEYS["alice"], delete)[0], Code.OK)  # the same call
        self.assertEqual(self.call("Models/Delete", KEYS["bob"], delete)[0], Code.NOT_FOUND)
        again = models_pb2.DeleteArtifactRequest(name="hers", idempotency_key="a-key")
        code, why = self.call("Models/Delete", KEYS["alice"], again)
        self.assertEqual(code, Code.INVALID_ARGUMENT)
        self.assertNotIn("alice", why[0])

    def test_responses_are_shared_by_the_keys_of_an_owner(self):
        # One of its own: a restart of the coordinator loses them.
        status, reply = self.http("POST", "/v1/responses", {"model": "hers-served", "input": "In", "max_output_tokens": 4}, "alice")
        self.assertEqual(status, 200, reply)
        response = json.loads(reply)["id"]
        path = f"/v1/responses/{response}"
        for who, expected in (("alice", 200), ("app", 200), ("admin", 200), ("bob", 404), ("infer", 404)):
            for route in (path, path + "/input_items"):
                self.assertEqual(self.http("GET", route, None, who)[0], expected, (who, route))
        # To others an unknown response and hers are the same.
        strange = "resp_" + "0" * (len(response) - len("resp_"))
        for method, end in (("GET", ""), ("GET", "/input_items"), ("POST", "/cancel"), ("DELETE", "")):
            hers, nobodys = (self.http(method, f"/v1/responses/{id}{end}", None, "bob") for id in (response, strange))
            self.assertEqual((hers[0], str(hers[1]).replace(response, strange)), (nobodys[0], str(nobodys[1])))
        # Another key of hers goes on with it and deletes what came of it.
        status, reply = self.http(
            "POST", "/v1/responses", {"model": "hers-served", "input": "And", "max_output_tokens": 4, "previous_response_id": response}, "app"
        )
        self.assertEqual(status, 200, reply)
        next_one = json.loads(reply)["id"]
        status, items = self.http("GET", f"/v1/responses/{next_one}/input_items", None, "alice")
        self.assertEqual(status, 200, items)
        self.assertIn('"In"', str(items))
        self.assertEqual(self.http("DELETE", f"/v1/responses/{next_one}", None, "bob")[0], 404)
        self.assertEqual(self.http("DELETE", f"/v1/responses/{next_one}", None, "alice")[0], 200)
        self.assertEqual(self.http("GET", f"/v1/responses/{next_one}", None, "app")[0], 404)

    def test_a_monitor_sees_what_runs(self):
        served = self.call("Inference/ListServed", KEYS["monitor"], inference_pb2.ListServedRequest())[1][0]
        self.assertEqual([model.name for model in served.models], ["hers-served"])
        self.assertEqual(self.http("GET", "/v2/models/hers-served/ready", None, "monitor")[0], 200)
        counts = {
            who: sum(self.call("Cluster/Status", KEYS[who], cluster_pb2.ClusterStatusRequest())[1][0].jobs_by_state.values())
            for who in ("monitor", "alice", "bob")
        }
        self.assertGreater(counts["monitor"], counts["bob"])

    def test_served_names_of_others_are_taken(self):
        self.as_("bob", lambda: self.cluster.cli("models", "upload", "his-folder", os.path.join(DATA, "genesis.txt")))
        code, why = self.call("Inference/Serve", KEYS["bob"], inference_pb2.ServeModelRequest(artifact="his-folder", name="hers-served"))
        self.assertEqual(code, Code.ALREADY_EXISTS)
        self.assertIn("another owner's", why[0])

    def test_without_keys_owners_are_not_opened_to_all(self):
        folder = os.path.join(self.keys.name, "copy")
        shutil.copytree(os.path.join(self.cluster.folder, "data"), folder)
        flags = [f"--data-dir={folder}", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0"]
        for more, starts in (([], False), (["--insecure"], True)):
            daemon = subprocess.Popen([PROGRAMS["espalierd"], *flags, *more], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            line = daemon.stdout.readline()
            while starts and line and "espalierd ready" not in line:
                line = daemon.stdout.readline()
            if starts:
                daemon.terminate()
                self.assertIn("espalierd ready", line)
            out, _ = daemon.communicate(timeout=60)
            if not starts:
                self.assertIn("--api-key-file", line + out)
                self.assertNotEqual(daemon.returncode, 0)

    def test_owners_survive_a_restart(self):
        self.cluster.daemon.terminate()
        self.cluster.daemon.wait()
        with mock.patch.dict(os.environ, {"ESPALIER_TOKEN": KEYS["admin"]}):
            self.cluster.start_daemon("/health")
            self.cluster.wait_for_workers(1)
        code, _ = self.call("Training/Get", KEYS["bob"], training_pb2.GetJobRequest(job_id=self.job))
        self.assertEqual(code, Code.NOT_FOUND)
        for name, request in (
            ("Training/Get", training_pb2.GetJobRequest(job_id=self.job)),
            ("Distillation/GetDistillation", distillation_pb2.DistillationRequest(id=self.tuning)),
        ):
            self.assertEqual(self.call(name, KEYS["alice"], request)[0], Code.OK, name)
        self.cluster.wait(lambda: self.http("GET", "/v1/models/hers-served", None, "alice")[0] == 200, 60, "the model is served again")
        self.assertEqual(self.http("GET", "/v1/models/hers-served", None, "bob")[0], 404)


if __name__ == "__main__":
    unittest.main()
