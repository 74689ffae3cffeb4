#include "client/cli/launch/bundle.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/sha256.h"
#include "client/cli/flags.h"
#include "client/cli/launch/child_process.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

// The same files make the same archive.
absl::StatusOr<std::unique_ptr<const TemporaryFile>> Pack(const fs::path& folder) {
  std::error_code error;
  std::string path = (fs::temp_directory_path(error) / "espalier-bundle-XXXXXX").string();
  // Of this user alone from the beginning: what is in it runs on all hosts.
  const int made = mkostemp(path.data(), O_CLOEXEC);
  if (made < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", path));
  close(made);
  auto file = std::make_unique<const TemporaryFile>(path);
  ChildOptions options;
  options.command = {"tar",
                     "--create",
                     "--file=" + path,
                     "--sort=name",
                     "--mtime=@0",
                     "--owner=0",
                     "--group=0",
                     "--numeric-owner",
                     "--mode=u+rwX,go=rX",
                     "--format=ustar",
                     "--directory=" + folder.parent_path().string(),
                     folder.filename().string()};
  options.keep_output = true;
  auto tar = ChildProcess::Run(options);
  if (!tar.ok()) return tar.status();
  if ((*tar)->exit_code() != 0) {
    return absl::InternalError(
        absl::StrCat("cannot pack ", folder.string(), ": ", Printable((*tar)->errors(), true)));
  }
  return file;
}

}  // namespace

TemporaryFile::~TemporaryFile() { unlink(path_.c_str()); }

absl::StatusOr<Bundle> FindBundle(const std::string& given, const std::string& program) {
  std::error_code error;
  fs::path path = given;
  if (given.empty()) {
    path = fs::path(program).parent_path();
    if (!fs::is_directory(path / "lib", error) || !fs::exists(path / "espalier-worker", error)) {
      return absl::FailedPreconditionError(
          "this program is not part of a bundle that could be copied to the hosts: give one with "
          "--bundle=FILE (deploy/bundle.sh makes build/espalier-bundle.tar.xz), or, if the "
          "programs are on the hosts, their folder with --remote-bin=FOLDER");
    }
  }
  Bundle bundle;
  bundle.file = path.string();
  if (fs::is_directory(path, error)) {
    path = fs::canonical(path, error);
    for (const char* const name : {"espalierd", "espalier-worker"}) {
      if (fs::exists(path / name, error)) continue;
      return UsageError(absl::StrCat("--bundle=", given, ": there is no ", name, " in it"));
    }
    auto packed = Pack(path);
    if (!packed.ok()) return packed.status();
    bundle.made = *std::move(packed);
    bundle.file = bundle.made->path();
  }
  auto key = Sha256OfFile(bundle.file);
  if (!key.ok()) return key.status();
  bundle.key = *std::move(key);
  return bundle;
}

}  // namespace espalier
