"""Runs a GoogleTest program with an S3 server: run_with_s3.py PROGRAM [ARGUMENT...]

The program gets the variables of a user who may do everything, S3_STRANGER_* and S3_ROLE_* of the other two, S3_TEST_BUCKET, and
S3_TLS_URL and S3_TLS_CA of the same server over TLS.
"""
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import s3_environment  # noqa: E402


def main():
    s3_environment.enter()
    from s3_server import BUCKET, S3Server

    with tempfile.TemporaryDirectory() as folder, S3Server(folder) as server:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        environment.update(server.environment, S3_TEST_BUCKET=BUCKET, S3_TLS_URL=server.tls_proxy.url, S3_TLS_CA=server.ca)
        environment.update({f"S3_STRANGER_{name}": value for name, value in server.stranger.items()})
        environment.update({f"S3_ROLE_{name}": value for name, value in server.web_identity.items()})
        return subprocess.run(sys.argv[1:], env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
