// Names of the values of an enum, as configs, results and tables show them. The enum lists them, in
// order:
//
//   enum class Mode { kReal, kVirtual, kSimulated };
//   constexpr auto texts_of(Mode) { return texts("real", "virtual", "simulated"); }
//
// so to_string(Mode::kVirtual) is "virtual"; parse_enum (json/text.h) is the way back.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace longnet {

template <class... Text>
constexpr std::array<std::string_view, sizeof...(Text)> texts(const Text&... names) {
  return {names...};
}

template <class Enum>
concept HasTexts = requires(Enum e) {
  texts_of(e);
};
constexpr std::string_view to_string(HasTexts auto e) { return texts_of(e)[size_t(e)]; }

template <HasTexts Enum>
constexpr auto enum_values() {
  std::array<Enum, texts_of(Enum{}).size()> values{};
  for (size_t i = 0; i < values.size(); ++i) values[i] = Enum(i);
  return values;
}
template <HasTexts Enum>
std::vector<std::string> enum_names() {
  const auto names = texts_of(Enum{});
  return {names.begin(), names.end()};
}

// Names of the rows of a registry.
std::vector<std::string> names_of(const auto& rows) {
  std::vector<std::string> names;
  for (const auto& row : rows) names.emplace_back(row.name);
  return names;
}

}  // namespace longnet
