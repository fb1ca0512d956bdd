// Chat templates: the model's own Jinja text, by a small interpreter.
//
// Known: for (with else, inline if, unpacking), if, set (also of namespace attributes), break,
// continue, generation; literals, + - * / // % ~, comparison, in, and, or, not, inline if,
// indexing, slices, attributes; loop.*; tests, filters and methods listed in docs/user;
// raise_exception, namespace, range. Anything else is refused with its name and its line and column
// when the template is read. Rendering settings are HF's: trim_blocks and lstrip_blocks on, no
// escaping. `strftime_now` is not defined: a prompt must not depend on the day a job runs, and
// templates that ask `strftime_now is defined` fall back to their fixed date.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace trireme::text {

// One turn of a conversation.
struct Message {
  std::string role;     // system, user, assistant, ...
  std::string content;  // text
  std::string extra;    // JSON object with the turn's other fields (name, tool_calls, ...), or "";
                        // templates see them behind role and content
};

// Whether the text ends with the opening of the assistant's turn.
enum class GenerationPrompt { without, with };

class ChatTemplate {
 public:
  // Parses; `source` is the file for messages. Throws UserError(bad_data) at the first construct
  // that is not known.
  ChatTemplate(const std::string& text, std::string source);

  // Renders. `special_tokens` holds bos_token, eos_token, ... as the template sees them; one that
  // is absent is undefined. Throws UserError(bad_data) with line and column: raise_exception, type
  // errors, more than 2 10^6 steps or 64 MiB of text.
  std::string render(std::span<const Message> messages, GenerationPrompt prompt,
                     const std::map<std::string, std::string>& special_tokens) const;

 private:
  struct Program;
  std::shared_ptr<const Program>
      program_;  // immutable: a template may be rendered from several threads
};

}  // namespace trireme::text
