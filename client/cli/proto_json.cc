#include "client/cli/proto_json.h"

#include <google/protobuf/descriptor.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

Json JsonNumber(double value) {
  // JSON cannot represent these, and null would hide what happened.
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

// Converts element `i` of a repeated field, or the field itself if i is -1.
Json One(const Message& m, const Reflection& r, const FieldDescriptor* f, int i) {
#define ESPALIER_GET(Type) (i < 0 ? r.Get##Type(m, f) : r.GetRepeated##Type(m, f, i))
  switch (f->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return ESPALIER_GET(Int32);
    case FieldDescriptor::CPPTYPE_INT64:
      return ESPALIER_GET(Int64);
    case FieldDescriptor::CPPTYPE_UINT32:
      return ESPALIER_GET(UInt32);
    case FieldDescriptor::CPPTYPE_UINT64:
      return ESPALIER_GET(UInt64);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return JsonNumber(ESPALIER_GET(Double));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return JsonNumber(ESPALIER_GET(Float));
    case FieldDescriptor::CPPTYPE_BOOL:
      return ESPALIER_GET(Bool);
    case FieldDescriptor::CPPTYPE_STRING:
      return ESPALIER_GET(String);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(ESPALIER_GET(Message));
    case FieldDescriptor::CPPTYPE_ENUM: {
      const int number = ESPALIER_GET(EnumValue);
      const auto* value = f->enum_type()->FindValueByNumber(number);
      return value != nullptr ? Json(value->name()) : Json(number);
    }
  }
#undef ESPALIER_GET
  return nullptr;
}

std::string Key(const Json& key) { return key.is_string() ? key.get<std::string>() : key.dump(); }

}  // namespace

Json ToJson(const Message& message) {
  const Reflection& r = *message.GetReflection();
  Json json = Json::object();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* f = message.GetDescriptor()->field(i);
    if (f->type() == FieldDescriptor::TYPE_BYTES) continue;
    if (f->is_map()) {
      // Sorted, so that the output is deterministic.
      std::map<std::string, Json> sorted;
      for (int e = 0; e < r.FieldSize(message, f); ++e) {
        const Message& entry = r.GetRepeatedMessage(message, f, e);
        const auto* type = entry.GetDescriptor();
        const Reflection& er = *entry.GetReflection();
        sorted[Key(One(entry, er, type->map_key(), -1))] = One(entry, er, type->map_value(), -1);
      }
      Json& object = json[f->name()] = Json::object();
      for (auto& [key, value] : sorted) object[key] = std::move(value);
    } else if (f->is_repeated()) {
      Json& array = json[f->name()] = Json::array();
      for (int e = 0; e < r.FieldSize(message, f); ++e) array.push_back(One(message, r, f, e));
    } else if (!f->has_presence() || r.HasField(message, f)) {
      json[f->name()] = One(message, r, f, -1);
    }
  }
  return json;
}

std::string Dump(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace espalier
