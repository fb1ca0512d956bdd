// GGUF files for tests, without LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scratch.hpp"

namespace trireme::test {

inline std::string gguf_text(const std::string& value) {
  return raw(uint64_t{value.size()}) + value;
}

// Puts a GGUF file together from parts that a test may change.
class GgufBuilder {
 public:
  std::string magic = "GGUF";
  uint32_t version = 3;

  void integer(const std::string& key, uint32_t value) { entry(key, 4, raw(value)); }
  void real(const std::string& key, float value) { entry(key, 6, raw(value)); }
  void word(const std::string& key, const std::string& value) { entry(key, 8, gguf_text(value)); }
  void words(const std::string& key, const std::vector<std::string>& values) {
    std::string body = raw(uint32_t{8}) + raw(uint64_t{values.size()});
    for (const auto& value : values) body += gguf_text(value);
    entry(key, 9, body);
  }
  void entry(const std::string& key, uint32_t type, const std::string& body) {
    metadata_ += gguf_text(key) + raw(type) + body;
    ++entries_;
  }
  // `shape` with the fastest dimension first, as in the file.
  void tensor(const std::string& name, const std::vector<uint64_t>& shape, uint32_t type,
              const std::string& data) {
    infos_ += gguf_text(name) + raw(static_cast<uint32_t>(shape.size()));
    for (const uint64_t extent : shape) infos_ += raw(extent);
    infos_ += raw(type) + raw(uint64_t{data_.size()});
    data_ += data;
    data_.resize((data_.size() + 31) / 32 * 32, '\0');
    ++tensors_;
  }
  std::string build() const {
    std::string out = magic + raw(version) + raw(tensors_) + raw(entries_) + metadata_ + infos_;
    out.resize((out.size() + 31) / 32 * 32, '\0');
    return out + data_;
  }

 private:
  std::string metadata_, infos_, data_;
  uint64_t entries_ = 0, tensors_ = 0;
};

}  // namespace trireme::test
