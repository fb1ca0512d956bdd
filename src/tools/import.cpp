// `trireme import`: a deck from the settings of another system, and what it could not carry over.
#include <cstdio>

#include "tools/foreign_deck.hpp"
#include "tools/output.hpp"
#include "trireme/base/log.hpp"
#include "trireme/tools/commands.hpp"

namespace trireme::tools {

ExitCode run_import(const ImportCommand& command) {
  if (command.names) {
    std::fputs(config::foreign_table_markdown(command.origin).c_str(), stdout);
    return ExitCode::done;
  }
  VALIDATE(!command.input.empty(), ExitCode::usage, "trireme import ",
           config::to_string(command.origin), " without a file: name one");
  const bool to_screen = command.output.empty();
  if (!to_screen) check_output_file(command.output, {command.input}, existing(command.force));
  const ForeignDeck import(command.origin, read_foreign_file(command.input), command.trainer);
  const std::string deck = import.text(command.input);
  if (to_screen) {
    std::fputs(deck.c_str(), stdout);
    return ExitCode::done;
  }
  write_output(command.output, deck);
  log::info(base::text(command.output.string(), ", for trireme ",
                       config::to_string(import.trainer()), ": ", import.carried(), " keys, ",
                       import.left().size(), " settings need your hand, ", import.needless().size(),
                       " have no counterpart and need none"));
  for (const std::string& line : import.left()) log::warning("not carried over: " + line);
  for (const std::string& line : import.needless()) log::info("not needed: " + line);
  return ExitCode::done;
}

}  // namespace trireme::tools
