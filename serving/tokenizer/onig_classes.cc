#include "serving/tokenizer/onig_classes.h"

#include <array>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "serving/tokenizer/unicode_16_additions.h"

namespace espalier::onig {
namespace {

constexpr char kSpace[] =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

std::string Newer(absl::string_view categories) {
  std::string out;
  for (const AddedRange& range : Unicode16Additions()) {
    const absl::string_view name = range.category;
    // "L" includes all letters, "Lu" one kind.
    if (!absl::StartsWith(name, categories)) continue;
    absl::StrAppendFormat(&out, "\\x{%x}", static_cast<uint32_t>(range.first));
    if (range.last > range.first) {
      absl::StrAppendFormat(&out, "-\\x{%x}", static_cast<uint32_t>(range.last));
    }
  }
  return out;
}

std::string Alphabetic() {
  return absl::StrCat("\\p{Alphabetic}", Newer("L"), Newer("Nl"), Newer("Mc"));
}

}  // namespace

std::string Category(absl::string_view name) {
  return absl::StrCat("\\p{", name, "}", Newer(name));
}

std::string Space() { return kSpace; }

std::string Word() {
  return absl::StrCat("\\p{Alphabetic}", Category("M"), Newer("L"), Category("Nd"), Category("Nl"),
                      Category("Pc"));
}

std::string LooseWord() { return Word() + "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"; }

std::optional<std::string> Property(absl::string_view written) {
  std::string name;
  for (const char c : written) {
    if (c != ' ' && c != '-' && c != '_') name.push_back(absl::ascii_tolower(c));
  }
  static constexpr std::array<std::pair<absl::string_view, absl::string_view>, 37> kLong = {{
      {"letter", "L"},
      {"uppercaseletter", "Lu"},
      {"lowercaseletter", "Ll"},
      {"titlecaseletter", "Lt"},
      {"modifierletter", "Lm"},
      {"otherletter", "Lo"},
      {"mark", "M"},
      {"combiningmark", "M"},
      {"nonspacingmark", "Mn"},
      {"spacingmark", "Mc"},
      {"enclosingmark", "Me"},
      {"number", "N"},
      {"decimalnumber", "Nd"},
      {"letternumber", "Nl"},
      {"othernumber", "No"},
      {"punctuation", "P"},
      {"connectorpunctuation", "Pc"},
      {"dashpunctuation", "Pd"},
      {"openpunctuation", "Ps"},
      {"closepunctuation", "Pe"},
      {"initialpunctuation", "Pi"},
      {"finalpunctuation", "Pf"},
      {"otherpunctuation", "Po"},
      {"symbol", "S"},
      {"mathsymbol", "Sm"},
      {"currencysymbol", "Sc"},
      {"modifiersymbol", "Sk"},
      {"othersymbol", "So"},
      {"separator", "Z"},
      {"spaceseparator", "Zs"},
      {"lineseparator", "Zl"},
      {"paragraphseparator", "Zp"},
      {"control", "Cc"},
      {"format", "Cf"},
      {"privateuse", "Co"},
      {"cntrl", "Cc"},
      {"digit", "Nd"},
  }};
  for (const auto& [full, brief] : kLong) {
    if (name == full) return Category(brief);
  }
  static constexpr absl::string_view kBrief =
      " l lu ll lt lm lo m mn mc me n nd nl no p pc pd ps pe pi pf po s sm sc sk so z zs zl zp cc "
      "cf co ";
  if (name.size() <= 2 && !name.empty() &&
      absl::StrContains(kBrief, absl::StrCat(" ", name, " "))) {
    name[0] = absl::ascii_toupper(name[0]);
    return Category(name);
  }
  if (name == "space" || name == "whitespace") return kSpace;
  if (name == "alpha" || name == "alphabetic") return Alphabetic();
  if (name == "alnum") return absl::StrCat(Alphabetic(), Category("Nd"));
  if (name == "word") return Word();
  if (name == "upper" || name == "uppercase") return absl::StrCat("\\p{Uppercase}", Newer("Lu"));
  if (name == "lower" || name == "lowercase") return absl::StrCat("\\p{Lowercase}", Newer("Ll"));
  if (name == "punct") return absl::StrCat(Category("P"), Category("S"));
  if (name == "blank") return absl::StrCat("\\x{9}", Category("Zs"));
  if (name == "xdigit" || name == "asciihexdigit") return "0-9A-Fa-f";
  if (name == "ascii") return "\\x{0}-\\x{7f}";
  if (name == "any") return "\\x{0}-\\x{10ffff}";
  if (name == "han") return "\\p{sc:Han}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}";
  static constexpr absl::string_view kScripts =
      " arabic armenian bengali bopomofo braille cherokee common coptic cyrillic devanagari "
      "ethiopic "
      "georgian gothic greek gujarati gurmukhi hangul hebrew hiragana inherited kannada katakana "
      "khmer lao latin malayalam mongolian myanmar ogham oriya runic sinhala syriac tamil telugu "
      "thaana thai tibetan yi ";
  if (absl::StrContains(kScripts, absl::StrCat(" ", name, " "))) {
    name[0] = absl::ascii_toupper(name[0]);
    return absl::StrCat("\\p{sc:", name, "}");
  }
  return std::nullopt;
}

}  // namespace espalier::onig
