// Values as bytes, for messages between ranks and for state that is stored: numbers and enums,
// texts, vectors and pairs of such values, and structs that list their members:
//
//   struct Place { int rank; std::vector<int> cores;  static constexpr auto fields =
//   std::tuple{&Place::rank, &Place::cores}; };
//
// Little-endian as all processors that we run on; nothing says what a value is, so both sides are
// the same program.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/base/error.hpp"

namespace trireme::base {

template <class T>
concept Described = requires {
  T::fields;
};
// A type that knows its bytes.
template <class T>
concept Encoded = requires(const T& value, std::string_view bytes) {
  { value.to_bytes() } -> std::same_as<std::string>;
  { T::from_bytes(bytes) } -> std::same_as<T>;
};
// Its memory is its value.
template <class T>
concept Plain = std::is_trivially_copyable_v<T> && !Described<T> && !std::is_pointer_v<T> &&
                !std::is_same_v<T, std::string_view>;

template <class T>
struct WireShape {
  static constexpr bool is_list = false, is_pair = false;
};
template <class T>
struct WireShape<std::vector<T>> {
  static constexpr bool is_list = true, is_pair = false;
};
template <class A, class B>
struct WireShape<std::pair<A, B>> {
  static constexpr bool is_list = false, is_pair = true;
};

class WireWriter {
 public:
  template <class T>
  WireWriter& put(const T& value) {
    if constexpr (Described<T>) {
      std::apply([&](auto... member) { (put(value.*member), ...); }, T::fields);
    } else if constexpr (Encoded<T>) {
      put(value.to_bytes());
    } else if constexpr (std::is_same_v<T, std::string>) {
      put_list(std::span<const char>(value));
    } else if constexpr (WireShape<T>::is_list) {
      put_list(std::span<const typename T::value_type>(value));
    } else if constexpr (WireShape<T>::is_pair) {
      put(value.first).put(value.second);
    } else {
      static_assert(Plain<T>, "list the members of this type as `fields`");
      append(&value, sizeof value);
    }
    return *this;
  }
  template <class T>
  WireWriter& put_list(std::span<const T> values) {
    put(uint64_t{values.size()});
    if constexpr (Plain<T> && !WireShape<T>::is_pair) {
      append(values.data(), values.size_bytes());
    } else {
      for (const T& value : values) put(value);
    }
    return *this;
  }
  std::string take() { return std::move(bytes_); }

 private:
  void append(const void* from, size_t count) {
    if (count > 0) bytes_.append(static_cast<const char*>(from), count);
  }
  std::string bytes_;
};

// Throws UserError(bad_data) with `what` in front where the bytes do not fit the type.
class WireReader {
 public:
  WireReader(std::string_view bytes, const char* what) : rest_(bytes), what_(what) {}

  template <class T>
  T take() {
    T value{};
    take(value);
    return value;
  }
  template <class T>
  void take(T& value) {
    if constexpr (Described<T>) {
      std::apply([&](auto... member) { (take(value.*member), ...); }, T::fields);
    } else if constexpr (Encoded<T>) {
      value = T::from_bytes(take<std::string>());
    } else if constexpr (std::is_same_v<T, std::string>) {
      value.resize(count_of(1));
      copy(value.data(), value.size());
    } else if constexpr (WireShape<T>::is_list) {
      take_list(value);
    } else if constexpr (WireShape<T>::is_pair) {
      take(value.first);
      take(value.second);
    } else {
      static_assert(Plain<T>, "list the members of this type as `fields`");
      copy(&value, sizeof value);
    }
  }
  bool done() const { return rest_.empty(); }
  void must_be_done() const {
    VALIDATE(done(), ExitCode::bad_data, what_, ": there is more than was expected");
  }

 private:
  template <class T>
  void take_list(std::vector<T>& values) {
    if constexpr (Plain<T> && !WireShape<T>::is_pair) {
      values.resize(count_of(sizeof(T)));
      copy(values.data(), values.size() * sizeof(T));
    } else {
      const size_t count = count_of(1);
      values.clear();
      for (size_t i = 0; i < count; ++i) take(values.emplace_back());
    }
  }
  size_t count_of(size_t width) {
    const auto count = take<uint64_t>();
    VALIDATE(count <= rest_.size() / width, ExitCode::bad_data, what_,
             ": a list is longer than its message");
    return count;
  }
  void copy(void* into, size_t count) {
    VALIDATE(count <= rest_.size(), ExitCode::bad_data, what_, ": the message ends early");
    if (count > 0) std::memcpy(into, rest_.data(), count);
    rest_.remove_prefix(count);
  }

  std::string_view rest_;
  const char* what_;
};

template <class T>
std::string to_bytes(const T& value) {
  return WireWriter().put(value).take();
}
template <class T>
T from_bytes(std::string_view bytes, const char* what = "a message") {
  WireReader reader(bytes, what);
  T value = reader.template take<T>();
  reader.must_be_done();
  return value;
}

}  // namespace trireme::base
