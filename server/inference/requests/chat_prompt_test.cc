// What chat templates receive, and that no conversation crashes the process.
#include "server/inference/requests/chat_prompt.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/testing/fake_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/inference/field_error.h"
#include "serving/tokenizer/byte_tokenizer.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

// Writes calls as transformers' templates do, with arguments as objects.
constexpr char kTemplate[] =
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<{{ c.function.name }} {{ c.function.arguments | tojson }}>"
    "{% endfor %};{% endfor %}{{ x | tojson if x is defined else '' }}";

std::string Deep(int levels) { return std::string(levels, '[') + std::string(levels, ']'); }

// OpenAI's format of one call.
std::string CallOf(const std::string& arguments) {
  return absl::StrCat(
      R"([{"id": "1", "type": "function", "function": {"name": "f", "arguments": ")",
      absl::StrReplaceAll(arguments, {{"\"", "\\\""}}), "\"}}]");
}

v1::ChatPrompt Chat(const std::string& tool_calls, const std::string& content = "") {
  v1::ChatPrompt chat;
  v1::ChatTurn* turn = chat.add_turns();
  turn->set_role("user");
  turn->set_content("hi");
  turn = chat.add_turns();
  turn->set_role("assistant");
  turn->set_content(content);
  turn->set_tool_calls(tool_calls);
  return chat;
}

// Prepends token 256 to texts encoded with special tokens.
class BeginningTokenizer : public Tokenizer {
 public:
  int vocabulary() const override { return 257; }
  const std::vector<int>& eos() const override { return bytes_->eos(); }
  std::vector<int> Encode(absl::string_view text) const override { return bytes_->Encode(text); }
  absl::StatusOr<std::vector<int>> TryEncode(absl::string_view text,
                                             const EncodeOptions& options) const override {
    std::vector<int> tokens = Encode(text);
    if (options.add_special) tokens.insert(tokens.begin(), 256);
    return tokens;
  }
  std::unique_ptr<StreamDecoder> NewStreamDecoder() const override {
    return bytes_->NewStreamDecoder();
  }
  std::string TokenBytes(int token) const override { return bytes_->TokenBytes(token); }
  bool IsSpecial(int token) const override { return token == 256; }

 private:
  std::unique_ptr<ByteTokenizer> bytes_ = *ByteTokenizer::Create(257);
};

absl::StatusOr<std::string> TextOf(const v1::ChatPrompt& chat,
                                   const std::string& source = kTemplate) {
  const auto tokenizer = ByteTokenizer::Create();
  FakeClock clock;
  const auto format = ChatTemplate::Replace(nullptr, source);
  if (!format.ok()) return format.status();
  absl::StatusOr<Prompt> prompt = RenderChat(chat, **tokenizer, format->get(), &clock);
  if (!prompt.ok()) return prompt.status();
  return (*tokenizer)->Decode(prompt->tokens);
}

TEST(ChatPromptTest, ArgumentsAreParsed) {
  EXPECT_THAT(*TextOf(Chat(CallOf(R"({"a": [1, {"b": null}]})"))),
              HasSubstr(R"(<f {"a": [1, {"b": null}]}>)"));
}

// As models write calls of functions without parameters.
TEST(ChatPromptTest, NoArgumentsAreAnEmptyObject) {
  EXPECT_THAT(*TextOf(Chat(CallOf(""))), HasSubstr("<f {}>"));
  EXPECT_THAT(*TextOf(Chat(CallOf(" \\n"))), HasSubstr("<f {}>"));
}

// As DeepSeek-R1's template does.
TEST(ChatPromptTest, ConcatenatedArgumentsStayText) {
  constexpr char kDeepSeek[] =
      "{%- for m in messages %}{%- if m['role'] == 'assistant' %}"
      "{%- for tool in m['tool_calls'] %}{{'<call>' + tool['type'] + '<sep>' + "
      "tool['function']['name'] + '\\n' + '```json' + '\\n' + tool['function']['arguments'] + "
      "'\\n' + '```' + '<end>'}}{%- endfor %}{%- endif %}{%- endfor %}";
  const std::string calls = CallOf(R"( {"a":  [1, "x"]})");
  EXPECT_EQ(*TextOf(Chat(calls), kDeepSeek),
            "<call>function<sep>f\n```json\n{\"a\":  [1, \"x\"]}\n```<end>");
  EXPECT_EQ(*TextOf(Chat(CallOf("")), kDeepSeek), "<call>function<sep>f\n```json\n{}\n```<end>");
  EXPECT_EQ(FieldOf(TextOf(Chat(CallOf("{\"a\"")), kDeepSeek).status()),
            "messages[1].tool_calls[0].function.arguments");
  // An object is converted to its text.
  EXPECT_EQ(*TextOf(Chat(R"([{"type": "function", "function":
                              {"name": "f", "arguments": {"a": [1, "x"]}}}])"),
                    kDeepSeek),
            "<call>function<sep>f\n```json\n{\"a\":[1,\"x\"]}\n```<end>");
  const auto said = [&](const std::string& expression) {
    const auto text =
        TextOf(Chat(CallOf(R"({"a": 1})")),
               "{% for m in messages %}{% for c in m.tool_calls or [] %}{% set f = c.function %}" +
                   expression + "{% endfor %}{% endfor %}");
    return text.ok() ? *text : std::string(text.status().message());
  };
  const std::string joined = R"(x{"a": 1})";
  EXPECT_EQ(said("{{ 'x' ~ f.arguments }}"), joined);
  EXPECT_EQ(said("{{ 'x' + f[\"arguments\"] }}"), joined);
  EXPECT_EQ(said("{{ f.arguments ~ '' }}"), R"({"a": 1})");
  EXPECT_EQ(said("{% set a = f.arguments %}{{ 'x' + a }}"), joined);
  // Unchanged where a template parses them.
  EXPECT_EQ(said("{{ 'x' ~ f.arguments | tojson }}"), joined);
  EXPECT_EQ(said("{{ 'x' ~ f.arguments.a }}"), "x1");
  EXPECT_EQ(said("{% if f.arguments is string %}{{ 'x' + f.arguments }}{% else %}"
                 "{{ f.arguments | tojson(separators=(',', ':')) }}{% endif %}"),
            R"({"a":1})");
  EXPECT_EQ(said("{{ 'arguments' + '.' }}{{ f.arguments.a }}"), "arguments.1");
}

// Most templates drop or reject turns of unknown roles.
TEST(ChatPromptTest, DeveloperRoleFallsBackToSystem) {
  v1::ChatPrompt chat;
  const auto say = [&chat](const std::string& role, const std::string& content) {
    v1::ChatTurn* turn = chat.add_turns();
    turn->set_role(role);
    turn->set_content(content);
  };
  say("system", "One.");
  say("developer", "Two.");
  say("system", "Three.");
  say("user", "Hi");
  say("developer", "Four.");
  EXPECT_EQ(*TextOf(chat), "system:One.\n\nTwo.\n\nThree.;user:Hi;system:Four.;");
  // OpenAI's open models support it.
  EXPECT_EQ(*TextOf(chat, "{# developer #}{% for m in messages %}{{ m.role }} {% endfor %}"),
            "system developer system user developer ");
  // System turns are left to the template.
  chat.clear_turns();
  say("system", "One.");
  say("system", "Two.");
  EXPECT_EQ(*TextOf(chat), "system:One.;system:Two.;");
}

TEST(ChatPromptTest, UnknownRolesAndEffortsAreRejected) {
  v1::ChatPrompt chat = Chat("");
  chat.mutable_turns(0)->set_role("human");
  EXPECT_EQ(FieldOf(TextOf(chat).status()), "messages[0].role");
  EXPECT_THAT(TextOf(chat).status().message(), HasSubstr("'human'; accepted: system, developer"));
  chat = Chat("");
  chat.set_reasoning_effort("hgih");
  const absl::Status status = TextOf(chat, "{{ reasoning_effort }}").status();
  EXPECT_EQ(FieldOf(status), "reasoning_effort");
  EXPECT_THAT(status.message(), HasSubstr("'hgih'; accepted: none"));
  chat.set_reasoning_effort("high");
  EXPECT_EQ(*TextOf(chat, "{{ reasoning_effort }}"), "high");
}

TEST(ChatPromptTest, InvalidJsonIsNamed) {
  const absl::Status status = TextOf(Chat(CallOf("{\"a\""))).status();
  EXPECT_EQ(FieldOf(status), "messages[1].tool_calls[0].function.arguments");
  EXPECT_THAT(status.message(), HasSubstr("messages[1].tool_calls[0].function.arguments is not"));
  EXPECT_EQ(FieldOf(TextOf(Chat("[")).status()), "messages[1].tool_calls");
  EXPECT_EQ(FieldOf(TextOf(Chat("{\"a\": 1}")).status()), "messages[1].tool_calls");
}

// Regression: copying or writing a value recurses per level, which overflowed the stack.
TEST(ChatPromptTest, DeepNestingIsRejected) {
  constexpr int kLevels = 200'000;
  for (const std::string& calls : {CallOf(Deep(kLevels)), Deep(kLevels)}) {
    const absl::Status status = TextOf(Chat(calls)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("nests deeper than 256 levels"));
  }
  v1::ChatPrompt chat = Chat("");
  chat.set_template_arguments(absl::StrCat("{\"x\": ", Deep(kLevels), "}"));
  EXPECT_THAT(TextOf(chat).status().message(),
              HasSubstr("chat_template_kwargs nests deeper than 256 levels"));
  chat = Chat("");
  chat.add_tools(
      absl::StrCat(R"({"function": {"name": "f", "parameters": {"x": )", Deep(kLevels), "}}}"));
  EXPECT_THAT(TextOf(chat).status().message(), HasSubstr("tools nests deeper than 256 levels"));
  // Templates have their own limit.
  EXPECT_THAT(TextOf(Chat(CallOf(Deep(200)))).status().message(), HasSubstr("nested too deep"));
  EXPECT_THAT(*TextOf(Chat(CallOf(Deep(90)))), HasSubstr(Deep(90)));
}

TEST(ChatPromptTest, TemplateSeesNullContentOfCalls) {
  constexpr char kAsks[] =
      "{% for m in messages %}{% if m['content'] is none %}calls {{ m.tool_calls | length }}"
      "{% else %}{{ m.content }}{% endif %};{% endfor %}";
  EXPECT_EQ(*TextOf(Chat(CallOf("{}")), kAsks), "hi;calls 1;");
  EXPECT_EQ(*TextOf(Chat(CallOf("{}"), "so"), kAsks), "hi;so;");
  // To all others it is empty text.
  EXPECT_EQ(*TextOf(Chat(CallOf("{}")), "{% for m in messages %}{{ m.content + '.' }}{% endfor %}"),
            "hi..");
}

TEST(ChatPromptTest, AnswerContinuesTheLastMessage) {
  v1::ChatPrompt chat = Chat("", "so it");
  chat.set_continue_final_message(true);
  EXPECT_THAT(*TextOf(chat), EndsWith(";assistant:so it"));
  chat.mutable_turns(0)->set_content("so it");
  EXPECT_EQ(*TextOf(chat), "user:so it;assistant:so it");
  EXPECT_EQ(FieldOf(TextOf(chat, "{{ messages[0].role }}").status()), "continue_final_message");
}

TEST(ChatPromptTest, APromptMayEndWithTheLastTurn) {
  v1::ChatPrompt chat = Chat("", "so");
  const std::string source =
      "{% for m in messages %}{{ m.content }};{% endfor %}{{ '>' if add_generation_prompt }}";
  EXPECT_EQ(*TextOf(chat, source), "hi;so;>");
  const auto tokenizer = ByteTokenizer::Create();
  const auto plain = [&] {
    return (*tokenizer)->Decode(RenderChat(chat, **tokenizer, nullptr, nullptr)->tokens);
  };
  EXPECT_THAT(plain(), EndsWith("assistant: so\nassistant:"));
  chat.set_no_generation_prompt(true);
  EXPECT_EQ(*TextOf(chat, source), "hi;so;");
  EXPECT_THAT(plain(), EndsWith("assistant: so"));
}

// Templates write special tokens themselves; some leave them to the tokenizer.
TEST(ChatPromptTest, SpecialTokensAreAddedOnRequest) {
  const BeginningTokenizer tokenizer;
  FakeClock clock;
  const auto format = ChatTemplate::Replace(nullptr, "{{ messages[0].content }}");
  v1::ChatPrompt chat = Chat("");
  EXPECT_THAT(RenderChat(chat, tokenizer, format->get(), &clock)->tokens, ElementsAre('h', 'i'));
  chat.set_add_special_tokens(true);
  EXPECT_THAT(RenderChat(chat, tokenizer, format->get(), &clock)->tokens,
              ElementsAre(256, 'h', 'i'));
}

// Regression: the search for the last message was quadratic for repetitive text.
TEST(ChatPromptTest, FindingTheLastMessageIsLinear) {
  v1::ChatPrompt chat = Chat("", absl::StrCat(std::string(2'000'000, 'a'), "b"));
  chat.mutable_turns(0)->set_content(std::string(4'000'000, 'a'));
  chat.set_continue_final_message(true);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(FieldOf(TextOf(chat, "{{ messages[0].content }}").status()), "continue_final_message");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

}  // namespace
}  // namespace espalier
