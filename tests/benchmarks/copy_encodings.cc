// How much smaller the files of checkpoints become as copies in a spool, and how many bytes of them
// a thread encodes and decodes in a second of its processor time, by encoding, in turns. The files
// are read before.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "storage/copy_encoding.h"
#include "tests/benchmarks/report.h"

ABSL_FLAG(std::vector<std::string>, files, {}, "shards of checkpoints");
ABSL_FLAG(int, rounds, 5, "of each encoding");

namespace espalier {
namespace {

constexpr size_t kPart = 1 << 20;  // as storage/copy_checkpoint.cc reads them

// Of this thread.
double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Result {
  std::vector<double> encoded_per_second, decoded_per_second;  // bytes of the file
  size_t object_bytes = 0;
};

absl::StatusOr<std::string> Encode(CopyEncoding encoding, absl::string_view file) {
  CopyEncoder encoder(encoding);
  std::string object, part;
  object.reserve(file.size());
  for (size_t at = 0; at < file.size(); at += kPart) {
    part.clear();
    if (absl::Status s = encoder.Add(file.substr(at, kPart), &part); !s.ok()) return s;
    object += part;
  }
  if (absl::Status s = encoder.Finish(&object); !s.ok()) return s;
  return object;
}

// Returns the number of bytes.
absl::StatusOr<size_t> Decode(CopyEncoding encoding, absl::string_view object) {
  CopyDecoder decoder(encoding);
  size_t bytes = 0;
  std::string part;
  for (size_t at = 0; at < object.size(); at += kPart) {
    absl::string_view encoded = object.substr(at, kPart);
    for (bool more = true; more;) {
      part.clear();
      const absl::StatusOr<bool> added = decoder.Add(&encoded, &part);
      if (!added.ok()) return added.status();
      bytes += part.size();
      more = *added;
    }
  }
  part.clear();
  if (absl::Status s = decoder.Finish(&part); !s.ok()) return s;
  return bytes + part.size();
}

absl::Status Round(CopyEncoding encoding, const std::string& file, Result* result) {
  double begin = CpuSeconds();
  const absl::StatusOr<std::string> object = Encode(encoding, file);
  if (!object.ok()) return object.status();
  const auto bytes = static_cast<double>(file.size());
  result->encoded_per_second.push_back(bytes / (CpuSeconds() - begin));
  result->object_bytes = object->size();
  begin = CpuSeconds();
  const absl::StatusOr<size_t> decoded = Decode(encoding, *object);
  if (!decoded.ok()) return decoded.status();
  if (*decoded != file.size()) return absl::InternalError("decoded to another number of bytes");
  result->decoded_per_second.push_back(bytes / (CpuSeconds() - begin));
  return absl::OkStatus();
}

int Main() {
  Report report("copy_encodings");
  report.Table(
      "Encodings of copies, by processor time (medians)",
      {"file", "bytes", "encoding", "smaller by %", "encoded GB/s", "decoded GB/s", "chosen"});
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  absl::Status status;
  for (const std::string& path : absl::GetFlag(FLAGS_files)) {
    const absl::StatusOr<std::string> file = ReadWholeFile(*files, path, int64_t{1} << 34);
    status.Update(file.status());
    if (!status.ok()) break;
    const size_t middle = std::min(kPart, file->size());
    const absl::StatusOr<CopyEncoding> chosen =
        ChooseEncoding(absl::string_view(*file).substr((file->size() - middle) / 2, middle));
    status.Update(chosen.status());
    std::vector<Result> results(kCopyEncodings.size());
    for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
      for (size_t i = 0; i < results.size() && status.ok(); ++i) {
        status.Update(Round(kCopyEncodings[i], *file, &results[i]));
      }
    }
    if (!status.ok()) break;
    for (size_t i = 0; i < results.size(); ++i) {
      const double part = static_cast<double>(results[i].object_bytes) /
                          static_cast<double>(std::max<size_t>(file->size(), 1));
      report.Row(
          {Text(path.substr(path.rfind('/') + 1)), Number(static_cast<double>(file->size()), 0),
           Text(absl::StrCat("FILE", SuffixOf(kCopyEncodings[i]))), Number(100 * (1 - part), 1),
           Number(1e-9 * Median(results[i].encoded_per_second), 2),
           Number(1e-9 * Median(results[i].decoded_per_second), 2),
           Text(kCopyEncodings[i] == *chosen ? "yes" : "")});
    }
  }
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  return report.Print(false, "");
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return espalier::Main();
}
