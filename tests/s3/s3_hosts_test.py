"""tests/e2e/own_disks_test with the checkpoints in S3: hosts without a common disk, one of which is lost and comes back, while S3
is slow, busy, and loses answers. The curve and the model are those of one host, bit for bit."""
import os
import sys
import tempfile
import unittest
import unittest.mock as mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "e2e")]
import s3_environment  # noqa: E402

if __name__ == "__main__":
    s3_environment.enter()
import own_disks_test  # noqa: E402  starts this program again in namespaces of its own


class S3HostsTest(own_disks_test.OwnDisksTest):
    def make_hosts(self, **network):
        from s3_server import BUCKET, S3Server

        super().make_hosts(**network)
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.server = self.enterContext(S3Server(folder, host=own_disks_test.COORDINATOR))
        clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        self.enterContext(mock.patch.dict(os.environ, {**clean, **self.server.environment}, clear=True))
        self.store = f"--checkpoint-store=s3://{BUCKET}/jobs"
        self.server.rules.set([
            {"match": "rank-0", "method": "PUT", "count": 3, "do": "status", "status": 503, "code": "SlowDown"},
            {"match": "rank-1", "method": "PUT", "count": 2, "do": "reset"},
            {"match": "rank-2", "method": "PUT", "count": 2, "do": "lose answer"},
            {"match": "manifest", "method": "PUT", "count": 3, "do": "lose answer"},  # the next one gets 412
            {"match": "rank", "method": "GET", "count": 3, "do": "truncate"},
            {"match": "rank", "count": 30, "do": "slow", "seconds": 0.2},
        ])

    def cluster(self, *flags, **options):
        return super().cluster(self.store, *flags, **options)

    def test_hosts_without_a_common_disk_train_as_one_host_does_and_serve(self):
        super().test_hosts_without_a_common_disk_train_as_one_host_does_and_serve()
        for rule in self.server.rules.rules[:5]:
            self.assertEqual(rule["count"], 0, f"not met: {rule}")
        self.assertTrue(any("manifest" in line and line.endswith(" 412") for line in self.server.rules.requests))


def load_tests(*_):
    return unittest.TestSuite([S3HostsTest("test_hosts_without_a_common_disk_train_as_one_host_does_and_serve")])


if __name__ == "__main__":
    unittest.main()
