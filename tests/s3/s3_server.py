"""S3, STS and IAM by moto behind a fault proxy, with a user, a role and a bucket. Signatures are checked, and who may do what."""
import json
import logging
import os
import subprocess
import sys
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fault_proxy import FaultProxy  # noqa: E402

REGION = "us-east-1"
BUCKET = "espalier-test"
ALLOWED = json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]})
TRUST = json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": "*", "Action": "sts:*"}]})


class S3Server:
    """While it is entered: `url` (of the proxy), `tls_proxy` (the same over TLS, without faults), `ca` (the file with its certificate),
    `rules` (the faults), `environment` (variables of a user who may do everything),
    `stranger` (of one who may do nothing), `web_identity` (of the role; the token's file is in `folder`)."""

    def __init__(self, folder, host="127.0.0.1"):
        """host: the address that the proxy listens on, as other hosts reach it."""
        self.folder, self.host = folder, host

    def __enter__(self):
        os.environ["MOTO_S3_DEFAULT_MAX_KEYS"] = "3"  # lists have several pages
        import boto3
        from moto.server import ThreadedMotoServer
        from moto.sts.responses import TokenResponse

        # STS takes a web identity without a signature; moto looks for one.
        TokenResponse._authenticate_and_authorize_normal_action = lambda self, resource: None
        for name in ("werkzeug", "moto"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self.moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self.moto.start()
        host, port = self.moto.get_host_and_port()
        self.proxy = FaultProxy((host, port), host=self.host).__enter__()
        self.ca = os.path.join(self.folder, "certificate.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc", "-days", "2",
                        "-subj", "/CN=S3 of the test", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", self.ca + ".key",
                        "-out", self.ca], check=True, capture_output=True)
        both = self.ca + ".both"
        with open(both, "w") as out:
            for path in (self.ca, self.ca + ".key"):
                with open(path) as part:
                    out.write(part.read())
        self.tls_proxy = FaultProxy((host, port), both).__enter__()
        self.url, self.rules = self.proxy.url, self.proxy.rules
        direct = f"http://{host}:{port}"

        def moto_api(path, data=b""):
            request = urllib.request.Request(f"{direct}/moto-api/{path}", data=data, method="POST",
                                             headers={"Content-Type": "text/plain"})
            urllib.request.urlopen(request, timeout=30).read()

        def check_after(requests):
            moto_api("reset-auth", b"%d" % requests)

        # What an earlier server of this process left.
        check_after(1 << 30)
        moto_api("reset")

        def client(service):
            return boto3.client(service, endpoint_url=direct, region_name=REGION, aws_access_key_id="setup",
                                aws_secret_access_key="setup")

        self.s3 = client("s3")
        self.s3.create_bucket(Bucket=BUCKET)
        iam = client("iam")
        self.environment = self._user(iam, "trainer")
        iam.put_user_policy(UserName="trainer", PolicyName="all", PolicyDocument=ALLOWED)
        self.stranger = self._user(iam, "stranger")
        role = iam.create_role(RoleName="pod", AssumeRolePolicyDocument=TRUST)["Role"]["Arn"]
        iam.put_role_policy(RoleName="pod", PolicyName="all", PolicyDocument=ALLOWED)
        token = os.path.join(self.folder, "web-identity-token")
        with open(token, "w") as file:
            file.write("header.payload.signature\n")
        self.web_identity = {"AWS_WEB_IDENTITY_TOKEN_FILE": token, "AWS_ROLE_ARN": role, **self._common()}
        check_after(0)  # from now on signatures and policies count
        return self

    def _common(self):
        nothing = os.path.join(self.folder, "nothing")
        return {"AWS_ENDPOINT_URL": self.url, "AWS_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true",
                "AWS_SHARED_CREDENTIALS_FILE": nothing, "AWS_CONFIG_FILE": nothing}

    def _user(self, iam, name):
        iam.create_user(UserName=name)
        key = iam.create_access_key(UserName=name)["AccessKey"]
        return {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"], **self._common()}

    def __exit__(self, *_):
        self.tls_proxy.__exit__()
        self.proxy.__exit__()
        self.moto.stop()
