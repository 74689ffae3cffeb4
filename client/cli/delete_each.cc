#include "client/cli/delete_each.h"

#include <nlohmann/json.hpp>

#include "client/cli/proto_json.h"
#include "client/terminal/text.h"

namespace espalier {

absl::Status DeleteEach(
    Context& context, const std::string& prefix, const std::vector<std::string>& names,
    const std::function<absl::StatusOr<std::string>(const std::string& name)>& remove) {
  absl::Status first;
  nlohmann::ordered_json deleted = nlohmann::ordered_json::array();
  for (const std::string& name : names) {
    const absl::StatusOr<std::string> id = remove(name);
    if (id.ok()) {
      deleted.push_back(*id);
      if (!context.json()) {
        context.out() << prefix << Printable(*id) << " deleted" << std::endl;
      }
    } else if (first.ok()) {
      first = id.status();
    } else {
      *context.env().err << "espalier: " << Printable(id.status().message(), true) << std::endl;
    }
  }
  if (context.json() && (first.ok() || !deleted.empty())) {
    nlohmann::ordered_json json;
    json["deleted"] = deleted;
    context.Document(json);
  }
  return first;
}

}  // namespace espalier
