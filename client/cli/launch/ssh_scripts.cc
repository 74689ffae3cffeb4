#include "client/cli/launch/ssh_scripts.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/cli/launch/shell_quote.h"

namespace espalier {
namespace {

// A process is known by its number, when it was started, and since which boot of the host: the
// number alone may be another process's by now.
constexpr char kFunctions[] = R"sh(set -u
umask 077
: "${HOME:=$(getent passwd "$(id -u)" | cut -d: -f6)}"
launch="$HOME/.espalier/launch/{ID}"
boot() { cat /proc/sys/kernel/random/boot_id; }
# identity PID: nothing if there is no such process, or only its remains.
identity() {
  stat=$(sed 's/.*) //' "/proc/$1/stat" 2> /dev/null) || return 0
  set -- "$1" $stat
  [ "$2" = Z ] || echo "$1 ${21} $(boot)"
}
# runs NAME: whether what was started under the name runs.
runs() {
  if [ -s "$launch/$1.unit" ]; then
    systemctl --user --quiet is-active "$(cat "$launch/$1.unit")"
  else
    [ -s "$launch/$1.pid" ] || return 1
    known=$(cat "$launch/$1.pid")
    [ "$(identity "${known%% *}")" = "$known" ]
  fi
}
)sh";

std::string Functions(const std::string& launch) {
  return absl::StrReplaceAll(kFunctions, {{"{ID}", launch}});
}

}  // namespace

std::string BundleFolder(const std::string& bundle_key) {
  return absl::StrCat("$HOME/.espalier/bundles/", bundle_key);
}

std::string LaunchFolder(const std::string& launch) {
  return absl::StrCat("$HOME/.espalier/launch/", launch);
}

std::string ProbeScript(const std::string& bundle_key) {
  // A user's systemd ends with the user's last session, and takes its units along, unless it
  // lingers.
  return absl::StrCat(R"sh(set -u
echo "machine=$(uname -s) $(uname -m)"
set -- ${SSH_CONNECTION:-}
echo "here=${3:-}"
echo "there=${1:-}"
echo "cpus=$(nproc)"
echo "memory=$(sed -n 's/^MemTotal: *\([0-9]*\) kB$/\1/p' /proc/meminfo)"
echo "gpus=$(nvidia-smi -L 2> /dev/null | grep -c '^GPU')"
runner=setsid
if [ "$(loginctl show-user "$(id -un)" --property=Linger --value 2> /dev/null)" = yes ] &&
  systemctl --user show-environment > /dev/null 2>&1 && command -v systemd-run > /dev/null; then
  runner=systemd
fi
echo "runner=$runner"
bundle=no
[ ! -x ")sh",
                      BundleFolder(bundle_key.empty() ? "none" : bundle_key),
                      R"sh(/espalier-worker" ] || bundle=yes
echo "bundle=$bundle"
)sh");
}

std::string UnpackScript(const std::string& bundle_key) {
  // Into a folder of its own first: two launches may do it at once.
  return absl::StrCat(
      "set -e; umask 077; b=\"$HOME/.espalier/bundles\"; mkdir -p \"$b\"; t=$(mktemp -d "
      "\"$b/.new.XXXXXX\"); trap 'rm -rf \"$t\"' EXIT; cat > \"$t/bundle.tar\"; "
      "s=$(sha256sum < \"$t/bundle.tar\"); if [ \"${s%% *}\" != ",
      bundle_key,
      " ]; then echo 'the bundle arrived damaged' >&2; exit 1; fi; "
      "tar -xf \"$t/bundle.tar\" -C \"$t\"; rm \"$t/bundle.tar\"; set -- \"$t\"/*; "
      "if [ $# != 1 ] || [ ! -x \"$1/espalierd\" ] || [ ! -x \"$1/espalier-worker\" ]; then "
      "echo 'the bundle is no folder with espalierd and espalier-worker' >&2; exit 1; fi; "
      "\"$1/espalier-worker\" --version > /dev/null; "
      "mv -T \"$1\" \"$b/",
      bundle_key, "\" 2> /dev/null || [ -x \"$b/", bundle_key, "/espalier-worker\" ]");
}

std::string StartScript(const RemoteProcess& process) {
  std::string command = absl::StrCat("\"", process.program, "\"");
  for (const std::string& flag : process.flags) {
    const std::string quoted = ShellQuote(flag);
    // {LAUNCH} expands in double quotes; launches' flags have no other special characters there.
    absl::StrAppend(
        &command, " ",
        flag.find("{LAUNCH}") == std::string::npos
            ? quoted
            : absl::StrCat("\"", absl::StrReplaceAll(flag, {{"{LAUNCH}", "$launch"}}), "\""));
  }
  std::string script = absl::StrCat(
      Functions(process.launch), "name=", process.name, "\nmkdir -p \"$launch\"\n",
      "if runs \"$name\"; then echo \"$name of this launch runs already\" >&2; exit 1; fi\n",
      "rm -f \"$launch/$name.pid\" \"$launch/$name.unit\" \"$launch/$name.ready\"\n", "printf %s ",
      ShellQuote(process.secret), " > \"$launch/$name.secret\"\nset -e\n");
  if (process.systemd) {
    absl::StrAppend(&script, "unit=espalier-", process.launch, "-", process.name,
                    ".service\n"
                    "systemctl --user reset-failed \"$unit\" 2> /dev/null || true\n"
                    "echo \"$unit\" > \"$launch/$name.unit\"\n"
                    "systemd-run --user --quiet --collect --unit=\"$unit\" "
                    "--property=StandardOutput=append:\"$launch/$name.log\" "
                    "--property=StandardError=append:\"$launch/$name.log\" ",
                    command, "\n");
  } else {
    absl::StrAppend(&script,
                    "setsid sh -c 'echo $$ > \"$0\"; shift; exec \"$@\"' "
                    "\"$launch/$name.number\" -- ",
                    command,
                    " < /dev/null >> \"$launch/$name.log\" 2>&1 &\n"
                    "until [ -s \"$launch/$name.number\" ]; do sleep 0.05; done\n"
                    "known=$(identity \"$(cat \"$launch/$name.number\")\")\n"
                    "rm \"$launch/$name.number\"\n"
                    "echo \"$known\" > \"$launch/$name.pid\"\n");
  }
  return script + "echo started=yes\n";
}

std::string AwaitReadyScript(const RemoteProcess& process, int seconds) {
  return absl::StrCat(Functions(process.launch), "name=", process.name, "\nleft=", seconds * 10,
                      R"sh(
until [ -s "$launch/$name.ready" ]; do
  left=$((left - 1))
  if [ "$left" = 0 ] || ! runs "$name"; then
    echo "it is not ready; the end of $launch/$name.log:" >&2
    tail -n 8 "$launch/$name.log" >&2
    exit 1
  fi
  sleep 0.1
done
field() { sed "s/.*\"$1\":\"\([^\"]*\)\".*/\1/" "$launch/$name.ready"; }
echo "grpc=$(field grpc)"
echo "ca=$(base64 < "$(field ca_file)" | tr -d '\n')"
echo "key=$(base64 < "$(field token_file)" | tr -d '\n')"
echo "folder=$launch"
)sh");
}

std::string CheckScript(const std::string& launch, const std::string& name) {
  return absl::StrCat(Functions(launch), "name=", name, R"sh(
if runs "$name"; then
  echo running=yes
else
  echo "it has ended; the end of $launch/$name.log:" >&2
  tail -n 8 "$launch/$name.log" >&2
  exit 1
fi
)sh");
}

std::string StopScript(const std::string& launch, const std::string& name, int seconds,
                       bool ask_twice) {
  return absl::StrCat(Functions(launch), "name=", name, "\nleft=", seconds * 10,
                      "\ntwice=", ask_twice ? "yes" : "no", R"sh(
stopped=no
if runs "$name"; then
  stopped=yes
  if [ -s "$launch/$name.unit" ]; then
    unit=$(cat "$launch/$name.unit")
    if [ "$twice" = yes ]; then
      systemctl --user kill --signal=TERM "$unit" || true
      sleep 0.3
    fi
    systemctl --user stop "$unit"
  else
    known=$(cat "$launch/$name.pid")
    kill -TERM "${known%% *}"
    if [ "$twice" = yes ]; then
      sleep 0.3
      ! runs "$name" || kill -TERM "${known%% *}"
    fi
    while runs "$name"; do
      left=$((left - 1))
      [ "$left" != 0 ] || kill -KILL "${known%% *}"
      sleep 0.1
    done
  fi
fi
rm -f "$launch/$name.pid" "$launch/$name.unit" "$launch/$name.secret" "$launch/$name.ready"
echo "stopped=$stopped"
)sh");
}

}  // namespace espalier
