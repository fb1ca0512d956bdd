#include "config/json_edit.hpp"

#include <algorithm>

#include "config/json_reader.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"

namespace trireme::config {

size_t JsonEdit::skip_blanks(size_t at) const {
  return std::min(text_.find_first_not_of(" \t\r\n", at), text_.size());
}

size_t JsonEdit::skip_string(size_t at) const {
  for (++at; at < text_.size() && text_[at] != '"'; ++at) {
    if (text_[at] == '\\') ++at;
  }
  return at + 1;
}

size_t JsonEdit::skip_value(size_t at) const {
  for (int depth = 0; at < text_.size();) {
    const char c = text_[at];
    if (c == '"') {
      at = skip_string(at);
      if (depth == 0) return at;
      continue;
    }
    if (depth == 0 && (c == ',' || c == '}')) break;
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    ++at;
    if (depth == 0 && (c == '}' || c == ']')) return at;
  }
  while (at > 0 && std::string_view(" \t\r\n").find(text_[at - 1]) != std::string_view::npos) --at;
  return at;  // behind a number or a word
}

void JsonEdit::scan() {
  members_.clear();
  open_ = text_.find('{');
  if (open_ == std::string::npos) throw InternalError("an edit of what is not a JSON object");
  for (size_t at = skip_blanks(++open_); at < text_.size() && text_[at] == '"';) {
    Member member;
    member.begin = at;
    const size_t colon = text_.find(':', skip_string(at));
    member.key = Json::parse(text_.substr(at, skip_string(at) - at)).get<std::string>();
    member.value = skip_blanks(colon + 1);
    member.end = skip_value(member.value);
    members_.push_back(std::move(member));
    at = skip_blanks(members_.back().end);
    if (at < text_.size() && text_[at] == ',') at = skip_blanks(at + 1);
  }
}

bool JsonEdit::has(std::string_view key) const {
  return std::any_of(members_.begin(), members_.end(),
                     [&](const Member& member) { return member.key == key; });
}

void JsonEdit::set(std::string_view key, const std::string& json) {
  const auto found = std::find_if(members_.rbegin(), members_.rend(),
                                  [&](const Member& member) { return member.key == key; });
  if (found != members_.rend()) {
    text_.replace(found->value, found->end - found->value, json);
  } else {
    const std::string added = base::text(Json(key).dump(), ": ", json);
    if (members_.empty()) {
      text_.insert(open_, added);
    } else {
      const std::string blanks = text_.substr(open_, members_.front().begin - open_);
      text_.insert(members_.back().end,
                   base::text(",", blanks.empty() ? std::string(" ") : blanks, added));
    }
  }
  scan();
}

void JsonEdit::erase(std::string_view key) {
  for (size_t i = members_.size(); i-- > 0;) {
    if (members_[i].key != key) continue;
    if (i + 1 < members_.size()) {
      text_.erase(members_[i].begin, members_[i + 1].begin - members_[i].begin);
    } else {
      const size_t begin = i > 0 ? members_[i - 1].end : open_;
      text_.erase(begin, members_[i].end - begin);
    }
    scan();
  }
}

}  // namespace trireme::config
