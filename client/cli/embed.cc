#include <algorithm>
#include <istream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/command.h"
#include "client/cli/proto_json.h"
#include "client/cli/sampling_flags.h"
#include "client/terminal/table.h"

namespace espalier {
namespace {

// Returns the arguments after the model, or the lines of standard input.
absl::StatusOr<std::vector<std::string>> Texts(Context& context) {
  const auto& args = context.flags().positional();
  if (args.empty()) return UsageError("missing: a model's name (espalier serve lists them)");
  std::vector<std::string> texts(args.begin() + 1, args.end());
  if (texts.size() == 1 && texts[0] == "-") {
    texts.clear();
    for (std::string line; std::getline(*context.env().in, line);) texts.push_back(line);
  }
  if (texts.empty()) return UsageError("missing: texts, or - for the lines of the standard input");
  return texts;
}

double Product(const v1::Embedding& a, const v1::Embedding& b) {
  double sum = 0;
  for (int i = 0; i < std::min(a.values_size(), b.values_size()); ++i) {
    sum += static_cast<double>(a.values(i)) * b.values(i);
  }
  return sum;
}

void ShowEmbeddings(Context& context, const std::vector<std::string>& texts,
                    const v1::EmbedReply& reply) {
  Table table({{"text", Align::kLeft, true},
               {"numbers", Align::kRight},
               {"first ones"},
               {"times the first text's", Align::kRight}});
  for (int i = 0; i < reply.embeddings_size(); ++i) {
    const v1::Embedding& e = reply.embeddings(i);
    std::string first;
    for (int j = 0; j < std::min(4, e.values_size()); ++j) {
      absl::StrAppend(&first, j == 0 ? "" : " ", absl::StrFormat("%.4f", e.values(j)));
    }
    table.Row({Printable(texts[static_cast<size_t>(i)]), absl::StrCat(e.values_size()), first,
               absl::StrFormat("%.4f", Product(reply.embeddings(0), e))});
  }
  context.out() << table.Render(context.terminal())
                << context.style().Dim(absl::StrCat(reply.usage().prompt_tokens(),
                                                    " tokens; all dimensions with --json"))
                << std::endl;
}

absl::Status RunEmbed(Context& context) {
  const absl::StatusOr<std::vector<std::string>> texts = Texts(context);
  if (!texts.ok()) return texts.status();
  const ParsedFlags& flags = context.flags();
  v1::EmbedRequest request;
  request.set_model(flags.positional()[0]);
  for (const std::string& text : *texts) request.add_inputs()->set_text(text);
  request.set_dimensions(static_cast<int32_t>(flags.Int("dimensions", 0)));
  request.set_no_normalization(flags.Has("no-normalization"));
  request.set_truncate(flags.Has("truncate"));
  FillQueue(flags, &request);
  auto client = context.client();
  if (!client.ok()) return client.status();
  const absl::StatusOr<v1::EmbedReply> reply = (*client)->Embed(request);
  if (!reply.ok()) return reply.status();
  if (reply->embeddings_size() != request.inputs_size()) {
    return absl::InternalError(absl::StrCat("the coordinator answered ", reply->embeddings_size(),
                                            " vectors for ", request.inputs_size(), " texts"));
  }
  if (context.json()) {
    context.Document(ToJson(*reply));
  } else {
    ShowEmbeddings(context, *texts, *reply);
  }
  return absl::OkStatus();
}

}  // namespace

Command EmbedCommand() {
  Command c;
  c.name = "embed";
  c.summary = "compute embeddings: a model's hidden state at the last token of each text";
  c.usage = "embed MODEL TEXT...|- [flags]";
  c.flags = {
      {"dimensions", FlagType::kInt, "N", "keep the first N dimensions (all)", 0, 1, 1 << 24},
      {"no-normalization", FlagType::kSwitch, "", "do not normalize to length 1"},
      {"truncate", FlagType::kSwitch, "",
       "truncate texts longer than the context at the beginning; otherwise an error"}};
  for (FlagSpec& flag : QueueFlags()) c.flags.push_back(std::move(flag));
  c.examples = {{"similarity of two texts", "espalier embed llm \"a king\" \"a queen\""},
                {"each line of a file", "espalier embed llm - --json < lines.txt"}};
  c.run = RunEmbed;
  return c;
}

}  // namespace espalier
