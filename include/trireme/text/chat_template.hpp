// Chat templates: the model's own Jinja text, by a small interpreter.
//
// docs/user/chat_templates.md lists what it knows. Anything else is refused with its name and its
// line and column when the template is read. Rendering settings are HF's: trim_blocks and
// lstrip_blocks on, no escaping. `strftime_now` gives midnight of a date that the caller names, not
// the clock's: a prompt must not depend on the moment in which a job runs.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/error.hpp"

namespace trireme::text {

// One turn of a conversation.
struct Message {
  std::string role;                    // system, user, assistant, ...
  std::optional<std::string> content;  // text; none: `extra` has it (null, or a list of text
                                       // parts), or the turn has no content
  std::string extra;  // JSON object with the turn's other fields (name, tool_calls, ...), or "";
                      // templates see them after role and content
  bool operator==(const Message&) const = default;
};

// The text of a turn's content, the parts of a list each on its line; "" when it has none.
std::string content_text(const Message& message);

// How the text ends: as the template ends the last turn, with the opening of the assistant's turn,
// or inside the last turn, which is to be continued (HF: continue_final_message).
enum class GenerationPrompt { without, with, continued };

// The variables of a template beside messages and special tokens.
struct TemplateInputs {
  std::string variables;  // JSON object (tools, documents, enable_thinking, ...); "": none
  std::string date;       // YYYY-MM-DD, of strftime_now; "": the function is not defined
};
// Throws UserError(code) with `name` when `date` is not a date of the years 1000 to 9999.
void check_date(const std::string& date, const std::string& name, ExitCode code);
// The day of the clock, in local time as in HF.
std::string today();

class ChatTemplate {
 public:
  // Parses; `source` is the file for messages. Throws UserError(bad_data) at the first construct
  // that is not known.
  ChatTemplate(const std::string& text, std::string source);

  // Renders. `special_tokens` holds bos_token, eos_token, ... as the template sees them; one that
  // is absent is undefined, and variables of `inputs` go before them. Contents that are lists of
  // text parts reach templates that loop over contents as they are, others as one text, a line
  // for each part. Throws UserError(bad_data) with line and column: raise_exception, type errors,
  // more than 2 10^6 steps or 64 MiB of text; a last turn that cannot be continued.
  std::string render(std::span<const Message> messages, GenerationPrompt prompt,
                     const std::map<std::string, std::string>& special_tokens,
                     const TemplateInputs& inputs = {}) const;
  // Whether the template calls strftime_now.
  bool asks_for_date() const;
  // As Jinja reads it, with plain line ends.
  const std::string& text() const;

 private:
  struct Program;
  std::shared_ptr<const Program>
      program_;  // immutable: a template may be rendered from several threads
};

}  // namespace trireme::text
