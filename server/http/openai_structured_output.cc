#include "server/http/openai_structured_output.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "serving/grammar/json_schema.h"

namespace espalier::openai {
namespace {

using json = nlohmann::ordered_json;

constexpr size_t kMaxStructures = 1024;

// Formats of vLLM and SGLang: {"structures": [{"begin", "schema", "end"}], "triggers": [...]}, or
// {"format": {...}}.
void ReadStructuralTag(JsonReader& reader, v1::StructuralTag* tag) {
  if (const json* format = reader.Find("format")) {
    tag->set_format(Dump(*format));
    return;
  }
  const json* structures = reader.Find("structures");
  if (structures == nullptr || !structures->is_array() || structures->empty() ||
      structures->size() > kMaxStructures) {
    reader.Fail("structures", "field 'response_format.structures' must be a list of 1 to 1024");
    return;
  }
  for (size_t i = 0; i < structures->size(); ++i) {
    const std::string place = absl::StrCat("response_format.structures[", i, "]");
    if (!(*structures)[i].is_object()) {
      reader.Fail("structures", absl::StrCat(place, " must be an object"));
      return;
    }
    JsonReader inner((*structures)[i], place + ".");
    v1::StructuralTag::Structure* out = tag->add_structures();
    inner.String("begin", true, out->mutable_begin());
    inner.String("end", true, out->mutable_end());
    if (const json* schema = inner.Find("schema")) {
      out->set_json_schema(Dump(*schema));
    } else {
      inner.Fail("schema", absl::StrCat(place, " must have a 'schema'"));
    }
    inner.RefuseUnknown();
    if (inner.error()) reader.Fail(inner.error()->param, inner.error()->message);
  }
  reader.Strings("triggers", kMaxStructures,
                 [&](const std::string& trigger) { tag->add_triggers(trigger); });
}

// Returns how many constraints it sets.
int ReadResponseFormat(const json& format, JsonReader& reader, v1::GenerateRequest* generate) {
  if (!format.is_object()) {
    reader.Fail("response_format", "field 'response_format' must be an object");
    return 0;
  }
  JsonReader inner(format, "response_format.");
  std::string type;
  inner.String("type", true, &type);
  // As llama-server takes it: the schema beside the type, whichever of the two it is.
  const json* bare =
      type == "json_object" || type == "json_schema" ? inner.Find("schema") : nullptr;
  if (bare != nullptr) {
    if (inner.Find("json_schema") != nullptr) {
      inner.Fail("schema",
                 "fields 'response_format.schema' and 'response_format.json_schema': give one");
    } else if (!bare->is_object() && !bare->is_boolean()) {
      inner.Fail("schema", "field 'response_format.schema' must be a JSON schema");
    }
    generate->mutable_structured_output()->set_json_schema(SchemaText(*bare));
  } else if (type == "json_object") {
    generate->mutable_structured_output()->set_json_object(true);
  } else if (type == "json_schema") {
    const json* wrapped = inner.Find("json_schema");
    const bool good = wrapped != nullptr && wrapped->is_object() && wrapped->contains("schema");
    if (good) {
      JsonReader deeper(*wrapped, "response_format.json_schema.");
      deeper.Ignore({"name", "description", "schema"});
      CheckStrictSchema((*wrapped)["schema"], deeper);
      deeper.RefuseUnknown();
      if (deeper.error()) reader.Fail(deeper.error()->param, deeper.error()->message);
      generate->mutable_structured_output()->set_json_schema(SchemaText((*wrapped)["schema"]));
    } else {
      inner.Fail("json_schema",
                 "field 'response_format.json_schema' must be an object with a 'schema'");
    }
  } else if (type == "structural_tag") {
    ReadStructuralTag(inner, generate->mutable_structured_output()->mutable_structural_tag());
  } else if (type != "text") {
    inner.Fail("type",
               "field 'response_format.type' must be text, json_object, json_schema or "
               "structural_tag");
  }
  inner.RefuseUnknown();
  if (inner.error()) reader.Fail(inner.error()->param, inner.error()->message);
  return type == "text" ? 0 : 1;
}

}  // namespace

void CheckStrictSchema(const json& schema, JsonReader& reader) {
  bool strict = false;
  reader.Bool("strict", &strict);
  if (!strict) return;
  const std::vector<std::string> ignored = UnenforcedKeywords(SchemaText(schema));
  if (ignored.empty()) return;
  reader.Fail("schema", absl::StrCat("json_schema: ", ignored[0],
                                     "; 'strict' promises the whole schema: leave out this keyword "
                                     "or 'strict'"));
}

std::string SchemaText(const json& schema) {
  return schema.is_string() ? schema.get<std::string>() : Dump(schema);
}

void ReadStructuredOutput(JsonReader& reader, v1::GenerateRequest* generate) {
  int given = 0;
  const auto read = [&](JsonReader& from, const std::string& prefix) {
    const auto out = [&] {
      ++given;
      return generate->mutable_structured_output();
    };
    if (const json* schema = from.Find(prefix + "json"))
      out()->set_json_schema(SchemaText(*schema));
    for (const char* name : {"regex", "grammar"}) {
      if (from.Find(prefix + name) == nullptr) continue;
      std::string text;
      from.String(prefix + name, true, &text);
      if (*name == 'r') {
        out()->set_regex(text);
      } else {
        out()->set_grammar(text);
      }
    }
    if (from.Find(prefix + "choice") != nullptr) {
      v1::ChoiceList* list = out()->mutable_choice();
      from.Strings(prefix + "choice", 10'000,
                   [&](const std::string& text) { list->add_texts(text); });
    }
  };
  read(reader, "guided_");
  if (const json* outputs = reader.Find("structured_outputs")) {
    if (!outputs->is_object()) {
      reader.Fail("structured_outputs", "field 'structured_outputs' must be an object");
      return;
    }
    JsonReader inner(*outputs, "structured_outputs.");
    read(inner, "");
    if (const json* tag = inner.Find("structural_tag")) {
      // vLLM sends it as a JSON string.
      json parsed = tag->is_string() ? json() : *tag;
      const bool good =
          !tag->is_string() || !JsonReader::ParseBody(tag->get<std::string>(), &parsed);
      if (good && parsed.is_object() && parsed.value("type", json()) == "structural_tag") {
        given += ReadResponseFormat(parsed, inner, generate);
      } else {
        inner.Fail("structural_tag",
                   "field 'structured_outputs.structural_tag' must be an object of that type");
      }
    }
    bool any_object = false;
    inner.Bool("json_object", &any_object);
    if (any_object) {
      ++given;
      generate->mutable_structured_output()->set_json_object(true);
    }
    inner.RefuseUnknown();
    if (inner.error()) reader.Fail(inner.error()->param, inner.error()->message);
  }
  if (const json* format = reader.Find("response_format")) {
    given += ReadResponseFormat(*format, reader, generate);
  }
  if (given > 1) {
    reader.Fail("response_format",
                "only one of response_format, structured_outputs and guided_... can hold, and only "
                "one form of it");
  }
}

}  // namespace espalier::openai
