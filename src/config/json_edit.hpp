// Changes of single keys of a JSON object's text: everything else keeps its bytes, so that numbers,
// order and layout of what the program does not know stay as they came.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::config {

class JsonEdit {
 public:
  // `object`: the text of a JSON object, which has been parsed before.
  explicit JsonEdit(std::string object) : text_(std::move(object)) { scan(); }

  bool has(std::string_view key) const;
  // `json`: the text of the new value. A new key comes last. Of a key that appears twice the last
  // one counts, as in Python.
  void set(std::string_view key, const std::string& json);
  void erase(std::string_view key);
  const std::string& text() const { return text_; }

 private:
  struct Member {
    std::string key;
    size_t begin = 0;  // of the key, with its quotation mark
    size_t value = 0, end = 0;
  };
  void scan();
  size_t skip_blanks(size_t at) const;
  size_t skip_string(size_t at) const;
  size_t skip_value(size_t at) const;

  std::string text_;
  std::vector<Member> members_;
  size_t open_ = 0;  // behind the object's brace
};

}  // namespace trireme::config
