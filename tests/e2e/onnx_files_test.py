"""ONNX files as users export them give the losses of PyTorch in float64 on the same batches."""
import os
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import DATA, Cluster, Failed  # noqa: E402

FILES = os.path.join(DATA, "onnx")


class OnnxFilesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(workers=1).__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__(None)

    def flags(self, name):
        """Ten steps on the same batch of four."""
        return [f"--onnx={FILES}/{name}.onnx", f"--dataset={FILES}/{name}.npz", "--input", "labels=labels_", "-b", "4",
                "--steps=10", "--optimizer=sgd", "--lr=0.01", "--holdout=0", "--metrics=none"]

    def last_loss(self, name, *flags):
        job = self.cluster.wait_for_job(self.cluster.train(*self.flags(name), *flags))
        self.assertEqual(job["state"].upper(), "SUCCEEDED", job)
        return self.cluster.losses(job["id"])[9]

    def uses(self, name, *flags):
        """The reply of a dry run, and its parameters by name."""
        reply = self.cluster.run("train", *self.flags(name), "--dry-run", *flags)
        return reply, {use["name"]: use for use in reply["parameter_uses"]}

    def test_buffers_and_literals_are_not_trained(self):
        self.assertAlmostEqual(self.last_loss("buffer_normalise"), 2.10962, delta=2e-5)
        self.assertAlmostEqual(self.last_loss("scalar_constants"), 0.87561, delta=2e-5)
        _, uses = self.uses("buffer_normalise")
        self.assertEqual({name for name, use in uses.items() if not use["trained"]}, {"mean", "std"})
        reply, uses = self.uses("scalar_constants")
        self.assertEqual(reply["trained"], {"tensors": 4, "elements": 195, "other_tensors": 4, "other_elements": 4})
        self.assertEqual({name for name, use in uses.items() if not use["trained"]}, {"val_0", "val_1", "val_2", "val_3"})

    def test_equal_tensors_that_exporters_merged(self):
        """The scales and shifts of new norms are parameters of their own, in files of both exporters."""
        for name in ("fresh_norms", "fresh_norms_dynamo"):
            flags = [f"--onnx={FILES}/{name}.onnx", f"--dataset={FILES}/fresh_norms.npz", "-b", "12", "--steps=4", "--optimizer=sgd",
                     "--lr=0.1", "--holdout=0"]
            job = self.cluster.wait_for_job(self.cluster.train(*flags, f"--name={name}"))
            self.assertEqual(job["state"].upper(), "SUCCEEDED", job)
            for ours, theirs in zip(self.cluster.losses(job["id"]).values(), (1.57067, 1.45167, 1.36071, 1.28811)):
                self.assertAlmostEqual(ours, theirs, delta=2e-5, msg=name)
            self.assertIn("merged tensors", " ".join(job["notes"]))

    def test_models_that_repeat_or_count_by_the_batch(self):
        """Tile by the batch, arange(batch), h[arange(B), lengths - 1], transformers' masks."""
        for name, loss in {"cls_token_repeat": 1.13020, "last_token_pool_arange": 0.90586, "hf_roberta": 1.38138}.items():
            self.assertAlmostEqual(self.last_loss(name), loss, delta=3e-5, msg=name)

    def test_queries_that_are_repeated_by_the_batch(self):
        """A DETR, whose first loss is ONNX Runtime's, at the batch of the data and another."""
        flags = [f"--onnx={FILES}/detr_like.onnx", f"--dataset={FILES}/detr_like.npz", "--input", "labels=labels_", "--holdout=0",
                 "--no-shuffle", "--metrics=none", "--optimizer=sgd", "--lr=0.01"]
        for batch, loss in ((4, 2.337771), (3, 2.494393)):
            job = self.cluster.wait_for_job(self.cluster.train(*flags, "-b", str(batch), "--steps=3"))
            self.assertEqual(job["state"].upper(), "SUCCEEDED", job)
            losses = self.cluster.losses(job["id"])
            self.assertAlmostEqual(losses[0], loss, delta=2e-5)
            self.assertLess(losses[2], losses[0])

    def test_stochastic_depth(self):
        """A ConvNeXt that leaves out layers at random trains, from ONNX Runtime's loss, and the seed says which layers."""
        flags = [f"--onnx={FILES}/convnext_droppath.onnx", f"--dataset={FILES}/convnext_droppath.npz", "--input", "labels=labels_", "-b",
                 "4", "--holdout=0", "--metrics=none", "--optimizer=sgd", "--lr=0.05", "--steps=20", "--seed=1"]
        jobs = [self.cluster.wait_for_job(self.cluster.train(*flags)) for _ in range(2)]
        self.assertEqual([job["state"].upper() for job in jobs], 2 * ["SUCCEEDED"], jobs)
        losses, again = (self.cluster.losses(job["id"]) for job in jobs)
        self.assertAlmostEqual(losses[0], 2.262437, delta=2e-5)
        self.assertLess(losses[19], 0.8 * losses[0])
        self.assertEqual(losses, again)

    def test_sums_over_neighbours(self):
        """scatter_add has a gradient, whose sums no order of the edges changes."""
        flags = [f"--onnx={FILES}/gnn_scatter_add.onnx", f"--dataset={DATA}/losses/gnn_amax.npz", "--input", "labels=labels_", "-b", "12",
                 "--steps=10", "--optimizer=sgd", "--lr=0.01", "--holdout=0", "--metrics=none"]
        job = self.cluster.wait_for_job(self.cluster.train(*flags))
        self.assertEqual(job["state"].upper(), "SUCCEEDED", job)
        losses = self.cluster.losses(job["id"])
        self.assertLess(losses[9], losses[0])

    def test_the_user_says_what_is_frozen(self):
        frozen = ("--freeze=0.*", "--freeze=2.*")
        self.assertAlmostEqual(self.last_loss("frozen_backbone", *frozen), 1.07354, delta=2e-5)
        self.assertAlmostEqual(self.last_loss("frozen_backbone", "--train-only=4.*"), 1.07354, delta=2e-5)
        shown = self.cluster.cli("train", *self.flags("frozen_backbone"), *frozen, "--dry-run", "--verbose").stdout
        self.assertIn("trains 2 tensors, 99 elements; 4 tensors, 1.34 k elements, are not trained", shown)
        self.assertRegex(shown, r"0\.weight +f32\[32, 8\] +no +freeze '0\.\*'")
        with self.assertRaisesRegex(Failed, "'5.\\*' matches no parameter"):
            self.cluster.train(*self.flags("frozen_backbone"), "--freeze=5.*")

    def test_weights_beside_the_file(self):
        flags = [f"--dataset={FILES}/bn_0_0.npz", "--input", "labels=y", "-b", "4", "--steps=8", "--holdout=0", "--seed=2"]

        def losses(model):
            job = self.cluster.wait_for_job(self.cluster.train(f"--onnx={model}", *flags))
            self.assertEqual(job["state"].upper(), "SUCCEEDED", job)
            self.assertEqual(job["parameters"], 18 + 2 + 2 + 2 + 144 + 2)  # the statistics are not trained
            return self.cluster.losses(job["id"])

        reference = losses(f"{FILES}/bn_0_0.onnx")
        with tempfile.TemporaryDirectory() as folder:
            for name in ("bn_0_0.onnx", "bn_0_0.onnx.data"):
                shutil.copy(f"{FILES}/{name}", folder)
            self.assertEqual(losses(folder), reference)
            self.cluster.run("models", "upload", "norms", f"{folder}/bn_0_0.onnx")
            self.assertEqual(losses("artifact:norms"), reference)
            shutil.copy(f"{FILES}/mlp.onnx", folder)
            with self.assertRaisesRegex(Failed, "holds 2 files that end in .onnx"):
                self.cluster.train(f"--onnx={folder}", *flags)
            os.remove(f"{folder}/bn_0_0.onnx.data")
            with self.assertRaisesRegex(Failed, 'keeps weights in the file .*bn_0_0.onnx.data'):
                self.cluster.train(f"--onnx={folder}/bn_0_0.onnx", *flags)

    def test_random_numbers_are_new_in_each_step_and_repeat_with_the_seed(self):
        flags = [f"--onnx={FILES}/vae_randn_like.onnx", f"--dataset={FILES}/vae_randn_like.npz", "--loss=identity_loss", "-b", "4",
                 "--holdout=0"]

        def losses(*more):
            job = self.cluster.wait_for_job(self.cluster.train(*flags, *more))
            self.assertEqual(job["state"].upper(), "SUCCEEDED", job)
            return self.cluster.losses(job["id"])

        still = losses("--optimizer=sgd", "--lr=0", "--steps=6", "--seed=1")
        self.assertEqual(len(set(still.values())), 6, still)
        self.assertEqual(losses("--optimizer=sgd", "--lr=0", "--steps=6", "--seed=1"), still)
        self.assertNotEqual(losses("--optimizer=sgd", "--lr=0", "--steps=6", "--seed=2"), still)
        learned = losses("--lr=0.01", "--steps=100")
        self.assertLess(sum(learned[step] for step in range(90, 100)) / 10, 0.92 * learned[0])

    def test_parameters_that_were_exported_without_values(self):
        """export_params=False, as in FlexFlow's manual: they start from initialisers, which are named."""
        flags = [f"--onnx={FILES}/noparams.onnx", f"--dataset={FILES}/noparams.npz", "--input", "onnx::Gemm_0=x", "--input",
                 "labels=y", "-b", "12", "--holdout=0", "--optimizer=sgd", "--lr=0.5", "--seed=1"]
        reply = self.cluster.run("train", *flags, "--steps=3", "--dry-run")
        notes = " ".join(reply["notes"])
        self.assertIn("start from Glorot's uniform distribution: 0.weight, 2.weight", notes)
        self.assertIn("start from 0: 0.bias, 2.bias", notes)
        self.assertEqual(reply["trained"]["tensors"], 4)
        job = self.cluster.wait_for_job(self.cluster.train(*flags, "--steps=40", "--name=started"))
        self.assertEqual(job["state"].upper(), "SUCCEEDED", job)
        losses = self.cluster.losses(job["id"])
        self.assertLess(losses[39], 0.9 * losses[0])
        # The file has a fixed batch, which is trained whatever the flag says.
        fixed = self.cluster.wait_for_job(self.cluster.train(*flags, "--steps=2", "-b", "5"))
        self.assertEqual(int(fixed["spec"]["batch_size"]), 12)
        self.assertIn("exported for a batch of 12, which is trained instead of 5", " ".join(fixed["notes"]))
        self.assertEqual(self.cluster.losses(fixed["id"]), {step: losses[step] for step in (0, 1)})
        # The model has values now.
        with tempfile.TemporaryDirectory() as folder:
            self.cluster.cli("models", "download", "started", folder)
            again = [f"--onnx={folder}/model.onnx", *flags[1:], "--steps=1", "--lr=0"]
            job = self.cluster.wait_for_job(self.cluster.train(*again))
            self.assertLess(self.cluster.losses(job["id"])[0], losses[39] + 1e-3)
        # What is not named like a parameter may be data.
        with self.assertRaisesRegex(Failed, "no column 'onnx::Gemm_0'.*if it is a parameter"):
            self.cluster.train(*[flag for flag in flags if flag != "onnx::Gemm_0=x"][:2], "--input=labels=y", "-b12", "--steps=1",
                               "--holdout=0")

    def test_a_dataset_of_one_array(self):
        reply = self.cluster.cli("train", f"--onnx={FILES}/mlp.onnx", f"--dataset={FILES}/x.npy", "--input", "x=x", "-b", "4",
                                 "--dry-run", check=False)
        self.assertEqual(reply.returncode, 1)
        self.assertRegex(reply.stdout, "no column 'labels'; it has 'x'")


if __name__ == "__main__":
    unittest.main()
