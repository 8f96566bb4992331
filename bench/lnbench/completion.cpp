// `lnbench completion`: the commands, options and their words as a script for bash; and, of a
// mistyped word, the one that may have been meant.
#include "core/check.h"
#include "io/axes.h"
#include "json/text.h"
#include "lnbench/commands.h"
#include "run/shipped.h"

namespace longnet {
namespace {

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::vector<std::string> long_options(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

// Names of shipped files, or {a,b} of an option that takes one of these words, which CLI11 tells in
// the name of its type.
std::vector<std::string> words_of(const CLI::Option& option) {
  std::vector<std::string> words;
  if (option.get_name() == "CONFIG" || option.check_lname("cluster"))
    for (const ShippedFile& file :
         shipped_files(option.get_name() == "CONFIG" ? "configs" : "clusters"))
      words.push_back(file.name);
  const std::string type = option.get_type_name();
  const size_t begin = type.find('{'), end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos) return words;
  std::istringstream list(type.substr(begin + 1, end - begin - 1));
  for (std::string word; std::getline(list, word, ',');) words.push_back(word);
  return words;
}

// A value that an option with words of its own does not take, with the word near to it or all of
// them; "" for other mistakes.
std::string explain_value(const CLI::App& command, const std::string& said) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() == 0 || !said.starts_with(option->get_name() + ":")) continue;
    // A check of the option's own says more than a list.
    if (option->get_type_name().find('{') != std::string::npos &&
        said.find(" not in {") == std::string::npos)
      continue;
    const std::vector<std::string> words = words_of(*option);
    const std::string& value = option->results().back();
    const std::string near = closest_match(value, words);
    const std::string hint =
        near.empty() ? "it takes " + join(words, ", ") : concat("did you mean '", near, "'?");
    return words.empty()
               ? ""
               : concat(option->get_name(), " does not take '", value, "'\n  hint: ", hint);
  }
  return "";
}

// "--set sweep.ranks=64" for --ranks 64, a key of configs, where the command takes --set; "" for
// others.
std::string set_key(const CLI::App& command, const std::string& word,
                    const std::vector<std::string>& words) {
  const size_t equals = std::min(word.find('='), word.size());
  std::string key = word.substr(2, equals - 2);
  std::ranges::replace(key, '-', '_');
  const Axis* const axis = find_axis(key);
  if (axis == nullptr || command.get_option_no_throw("--set") == nullptr) return "";
  if (!axis->use.swept && axis->use.section.empty()) return "";
  const auto next = std::ranges::find(words, word) + 1;
  const std::string value = equals < word.size() ? word.substr(equals + 1)
                            : next < words.end() ? *next
                                                 : "VALUE";
  const std::string_view section = axis->use.section.empty() ? "sweep" : axis->use.section;
  return concat("--set ", section, ".", key, "=", value);
}

}  // namespace

std::string command_list(const CLI::App& app) {
  std::vector<std::pair<std::string, std::string>> rows;
  for (const CLI::App* command : commands_of(app))
    rows.emplace_back(command->get_name(), command->get_description());
  const std::string text = two_columns(rows);
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

std::string bash_completion(const CLI::App& app) {
  std::vector<std::string> names{"--help", "--version"};
  std::string values, options;
  for (const CLI::App* command : commands_of(app)) {
    const std::string& name = command->get_name();
    names.push_back(name);
    options += concat("    ", name, ") words=\"", join(long_options(*command), " "), "\" ;;\n");
    for (const CLI::Option* option : command->get_options()) {
      const std::vector<std::string> words = words_of(*option);
      if (words.empty()) continue;
      const std::string place = option->get_positional()
                                    ? concat(name, ":", name)
                                    : concat(name, ":--", option->get_lnames().at(0));
      values += concat("    ", place, ") words=\"", join(words, " "), "\" ;;\n");
    }
  }
  return concat(
      "# bash completion of lnbench:  source <(lnbench completion)\n"
      "_lnbench() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} "
      "command=${COMP_WORDS[1]} words=\n"
      "  if ((COMP_CWORD == 1)); then words=\"",
      join(names, " "),
      "\"\n"
      "  elif [[ $word == -* ]]; then case $command in\n",
      options,
      "    esac\n"
      "  else case $command:$before in\n",
      values,
      "    esac\n"
      "  fi\n"
      "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
      "}\n"
      "complete -o default -F _lnbench lnbench\n");
}

std::string explain_mistake(CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  if (argc < 2)
    return concat("no command was given; lnbench COMMAND --help says more\nCommands:\n",
                  command_list(app));
  std::vector<std::string> names;
  for (const CLI::App* command : commands_of(app)) names.push_back(command->get_name());
  const std::string first = argv[1];
  if (std::ranges::find(names, first) == names.end())
    return first.starts_with('-')
               ? concat(error.what(), "\n  hint: lnbench --help lists commands and options")
               : concat("there is no command '", first, "'\n  hint: ", name_hint(first, names));
  const CLI::App& command = *app.get_subcommand(first);
  const std::string help = concat("lnbench ", first, " --help lists what it takes");
  if (dynamic_cast<const CLI::ValidationError*>(&error) != nullptr)
    if (const auto text = explain_value(command, error.what()); !text.empty()) return text;
  for (const std::string& word : command.remaining()) {
    if (!word.starts_with("--")) continue;
    const std::string name = word.substr(0, word.find('='));
    std::vector<std::string> elsewhere;
    for (const CLI::App* other : commands_of(app))
      if (const auto theirs = long_options(*other); std::ranges::find(theirs, name) != theirs.end())
        elsewhere.push_back(other->get_name());
    const std::string near = closest_match(name, long_options(command));
    const std::string key = set_key(command, word, {argv, argv + argc});
    return concat("lnbench ", first, " has no option ", name, "\n  hint: ",
                  !key.empty()         ? key
                  : !near.empty()      ? concat("did you mean ", near, "?")
                  : !elsewhere.empty() ? concat("it is one of: ", join(elsewhere, ", "))
                                       : help);
  }
  const std::vector<std::string> words = command.remaining();
  const std::string said =
      words.empty() ? error.what() : concat("lnbench ", first, " takes no '", words.back(), "'");
  const CLI::Option* resume = command.get_option_no_throw("--resume");
  if (dynamic_cast<const CLI::RequiredError*>(&error) && resume && resume->count() > 0)
    return concat(
        said, "\n  hint: --resume needs the config and options that began the run: \"command\" of ",
        resume->results().back(), "/run.json");
  return concat(said, "\n  hint: ", help);
}

}  // namespace longnet
