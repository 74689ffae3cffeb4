#include "ops/program/tensor_names.h"

#include <set>
#include <utility>

namespace espalier {

std::vector<std::string> TensorNames(const v1::Program& program) {
  std::set<std::pair<int, std::string>> names;
  for (const v1::Buffer& buffer : program.buffers()) {
    names.emplace(buffer.kind(), buffer.name());
  }
  std::vector<std::string> result;
  for (const v1::Buffer& buffer : program.buffers()) {
    std::string name = buffer.name();
    const size_t mark = name.rfind('#');
    if (mark != std::string::npos && mark + 1 < name.size() &&
        name.find_first_not_of("0123456789", mark + 1) == std::string::npos &&
        names.count({buffer.kind(), name.substr(0, mark)}) > 0) {
      name.resize(mark);
    }
    result.push_back(std::move(name));
  }
  return result;
}

}  // namespace espalier
