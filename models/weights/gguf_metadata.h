// Reads a GGUF file's metadata by names without the architecture prefix: "block_count" for
// "llama.block_count". The first error sticks, naming file and key; later calls return defaults.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "models/weights/gguf.h"

namespace espalier {

class GgufMetadata {
 public:
  // `file` must outlive this.
  explicit GgufMetadata(const GgufFile& file);

  const GgufFile& file() const { return file_; }
  const absl::Status& status() const { return status_; }
  const std::string& architecture() const { return architecture_; }  // general.architecture

  std::string Key(const std::string& name) const;
  bool Has(const std::string& name) const;

  // From `least` to 2^30.
  int64_t Int(const std::string& name, int64_t otherwise, int64_t least);
  int64_t Size(const std::string& name, int64_t otherwise) { return Int(name, otherwise, 1); }
  int64_t Size(const std::string& name);  // an error if it is missing
  double Number(const std::string& name, double otherwise);
  bool Flag(const std::string& name, bool otherwise);
  std::string Text(const std::string& name, const std::string& otherwise);

  // "metadata '<key>' must be <accepted>".
  void Fail(const std::string& name, const std::string& accepted);
  void Fail(absl::Status status) { status_.Update(status); }

 private:
  const GgufFile::Value* Find(const std::string& name) const;

  const GgufFile& file_;
  absl::Status status_;
  std::string architecture_;
};

}  // namespace espalier
