// A stream of bytes, cut into lines as they come.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace trireme::plugin {

class Lines {
 public:
  // Calls take(std::string_view) for each line that ends in these bytes, without its end (\n or
  // \r\n); empty ones are skipped.
  template <class Take>
  void add(std::string_view bytes, const Take& take) {
    const size_t before = begun_.size();  // no line ends in there
    begun_ += bytes;
    size_t begin = 0;
    for (size_t end; (end = begun_.find('\n', std::max(begin, before))) != std::string::npos;
         begin = end + 1) {
      give(std::string_view(begun_).substr(begin, end - begin), take);
    }
    begun_.erase(0, begin);
  }

  // The stream has ended: its last line may have no end.
  template <class Take>
  void end(const Take& take) {
    give(cut(), take);
  }

  // The start of a line whose end has not come yet.
  const std::string& begun() const { return begun_; }
  std::string cut() { return std::exchange(begun_, {}); }

 private:
  template <class Take>
  static void give(std::string_view line, const Take& take) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) take(line);
  }

  std::string begun_;
};

}  // namespace trireme::plugin
