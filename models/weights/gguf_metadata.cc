#include "models/weights/gguf_metadata.h"

#include <variant>

#include "absl/strings/str_cat.h"

namespace espalier {

GgufMetadata::GgufMetadata(const GgufFile& file) : file_(file) {
  const auto found = file_.metadata().find("general.architecture");
  if (found == file_.metadata().end()) return;
  if (const std::string* name = std::get_if<std::string>(&found->second)) {
    architecture_ = *name;
  } else {
    status_ = absl::InvalidArgumentError(
        absl::StrCat("'", file_.path(), "': metadata 'general.architecture' must be a string"));
  }
}

std::string GgufMetadata::Key(const std::string& name) const {
  return absl::StrCat(architecture_, ".", name);
}

const GgufFile::Value* GgufMetadata::Find(const std::string& name) const {
  const auto found = file_.metadata().find(Key(name));
  return found == file_.metadata().end() ? nullptr : &found->second;
}

bool GgufMetadata::Has(const std::string& name) const { return Find(name) != nullptr; }

int64_t GgufMetadata::Int(const std::string& name, int64_t otherwise, int64_t least) {
  const GgufFile::Value* found = Find(name);
  if (found == nullptr) return otherwise;
  const int64_t* value = std::get_if<int64_t>(found);
  if (value == nullptr || *value < least || *value > (int64_t{1} << 30)) {
    Fail(name, absl::StrCat("an integer from ", least, " to 2^30"));
    return least;
  }
  return *value;
}

int64_t GgufMetadata::Size(const std::string& name) {
  if (!Has(name)) Fail(name, "a number: it is missing");
  return Size(name, 1);
}

double GgufMetadata::Number(const std::string& name, double otherwise) {
  const GgufFile::Value* found = Find(name);
  if (found == nullptr) return otherwise;
  if (const double* value = std::get_if<double>(found)) return *value;
  if (const int64_t* value = std::get_if<int64_t>(found)) return static_cast<double>(*value);
  Fail(name, "a number");
  return otherwise;
}

bool GgufMetadata::Flag(const std::string& name, bool otherwise) {
  const GgufFile::Value* found = Find(name);
  if (found == nullptr) return otherwise;
  if (const bool* value = std::get_if<bool>(found)) return *value;
  Fail(name, "true or false");
  return otherwise;
}

std::string GgufMetadata::Text(const std::string& name, const std::string& otherwise) {
  const GgufFile::Value* found = Find(name);
  if (found == nullptr) return otherwise;
  if (const std::string* value = std::get_if<std::string>(found)) return *value;
  Fail(name, "a string");
  return otherwise;
}

void GgufMetadata::Fail(const std::string& name, const std::string& accepted) {
  Fail(absl::InvalidArgumentError(
      absl::StrCat("'", file_.path(), "': metadata '", Key(name), "' must be ", accepted)));
}

}  // namespace espalier
