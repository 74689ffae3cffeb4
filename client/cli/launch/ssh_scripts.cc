#include "client/cli/launch/ssh_scripts.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/cli/launch/shell_quote.h"

namespace espalier {
namespace {

// A process is known by its number, when it was started, and since which boot of the host: the
// number alone may be another process's by now. NAME.owner says which launch has started it: a
// launch from another machine, or with another --home, may have the same id.
constexpr char kFunctions[] = R"sh(set -u
umask 077
: "${HOME:=$(getent passwd "$(id -u)" | cut -d: -f6)}"
launch="$HOME/.espalier/launch/{ID}"
name={NAME}
owner={OWNER}
boot() { cat /proc/sys/kernel/random/boot_id; }
# identity PID: nothing if there is no such process, or only its remains.
identity() {
  stat=$(sed 's/.*) //' "/proc/$1/stat" 2> /dev/null) || return 0
  set -- "$1" $stat
  [ "$2" = Z ] || echo "$1 ${21} $(boot)"
}
# Whether what was started under the name runs.
runs() {
  if [ -s "$launch/$name.unit" ]; then
    systemctl --user --quiet is-active "$(cat "$launch/$name.unit")"
  else
    [ -s "$launch/$name.pid" ] || return 1
    known=$(cat "$launch/$name.pid")
    [ "$(identity "${known%% *}")" = "$known" ]
  fi
}
# is FILE: whether this launch has written it.
is() { [ "$(cat "$launch/$name.$1" 2> /dev/null)" = "$owner" ]; }
# A start and a stop of one name wait for each other: the connection of a start may be cut, and the
# start go on.
alone() {
  mkdir -p "$launch"
  exec 9> "$launch/$name.lock"
  # 1: the time is over. Of all else flock, or the shell, says what is wrong.
  flock -w 30 9 || {
    [ $? != 1 ] || echo "another start or stop of $name does not end" >&2
    exit 1
  }
}
)sh";

std::string Functions(const ProcessName& process) {
  return absl::StrReplaceAll(
      kFunctions, {{"{ID}", process.launch}, {"{NAME}", process.name}, {"{OWNER}", process.owner}});
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
  std::string command = process.program;
  for (const std::string& flag : process.flags) {
    const std::string quoted = ShellQuote(flag);
    // {LAUNCH} expands in double quotes. Nothing else does: SshLaunch::ReadHosts has checked
    // --data-dir, and the other flags with {LAUNCH} are the launch's own.
    absl::StrAppend(
        &command, " ",
        flag.find("{LAUNCH}") == std::string::npos
            ? quoted
            : absl::StrCat("\"", absl::StrReplaceAll(flag, {{"{LAUNCH}", "$launch"}}), "\""));
  }
  // `cat` says why it cannot write: no shell's own commands do.
  std::string script =
      absl::StrCat(Functions(process), R"sh(set -e
alone
if runs; then
  echo "$name of this launch runs already; it was started from another machine or another --home," \
    "which stops it, or else: $(cat "$launch/$name.unit" "$launch/$name.pid" 2> /dev/null)" >&2
  exit 1
fi
if is stopped; then echo "it was stopped before it could start" >&2; exit 1; fi
for file in pid unit ready stopped; do rm -f "$launch/$name.$file"; done
echo "$owner" | cat > "$launch/$name.owner"
printf %s )sh",
                   ShellQuote(process.secret), " | cat > \"$launch/$name.secret\"\n");
  if (process.systemd) {
    absl::StrAppend(&script, "unit=espalier-", process.launch, "-", process.name,
                    ".service\n"
                    "systemctl --user reset-failed \"$unit\" 2> /dev/null || true\n"
                    "echo \"$unit\" | cat > \"$launch/$name.unit\"\n"
                    "systemd-run --user --quiet --collect --unit=\"$unit\" "
                    "--property=StandardOutput=append:\"$launch/$name.log\" "
                    "--property=StandardError=append:\"$launch/$name.log\" ",
                    command, " 9>&-\n");
  } else {
    // The file stays empty if it has ended already.
    absl::StrAppend(&script, "setsid ", command,
                    " < /dev/null >> \"$launch/$name.log\" 2>&1 9>&- &\n"
                    "identity $! | cat > \"$launch/$name.pid\" || { kill -KILL $!; exit 1; }\n");
  }
  return script + "echo started=yes\n";
}

std::string AwaitReadyScript(const RemoteProcess& process, int seconds) {
  return absl::StrCat(Functions(process), "left=", seconds * 10, R"sh(
until [ -s "$launch/$name.ready" ]; do
  left=$((left - 1))
  if [ "$left" = 0 ] || ! runs; then
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

std::string CheckScript(const ProcessName& process) {
  return absl::StrCat(Functions(process), R"sh(
if runs; then
  echo running=yes
else
  echo "it has ended; the end of $launch/$name.log:" >&2
  tail -n 8 "$launch/$name.log" >&2
  exit 1
fi
)sh");
}

std::string StopScript(const ProcessName& process, int seconds, bool ask_twice) {
  return absl::StrCat(Functions(process), "left=", seconds * 10,
                      "\ntwice=", ask_twice ? "yes" : "no", R"sh(
alone
# A start of this launch that comes after this finds it.
echo "$owner" | cat > "$launch/$name.stopped"
if ! is owner; then
  if runs; then echo stopped=other; else echo stopped=no; fi
  exit 0
fi
stopped=no
if runs; then
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
      ! runs || kill -TERM "${known%% *}"
    fi
    while runs; do
      left=$((left - 1))
      [ "$left" != 0 ] || kill -KILL "${known%% *}"
      if [ "$left" -lt -100 ]; then
        echo "process ${known%% *} does not end, though it was sent SIGKILL" >&2
        exit 1
      fi
      sleep 0.1
    done
  fi
fi
for file in pid unit secret ready owner; do rm -f "$launch/$name.$file"; done
echo "stopped=$stopped"
)sh");
}

}  // namespace espalier
