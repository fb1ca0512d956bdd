// Bounded queues between ranks: a message goes from one rank to another, in the order in which it
// was posted there, and nobody else takes part. No call waits. What finds no room stays with its
// sender, congested() says so, and the caller makes nothing more until that is over, while it goes
// on taking what others send: so full queues cannot stop a ring of ranks, however short they are.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "trireme/base/wire.hpp"
#include "trireme/comm/comm.hpp"

namespace trireme::comm {

// What may be under way from one rank to another, or lie there and not be taken yet. A message of
// more bytes goes when nothing else is under way.
struct MailLimits {
  int64_t messages = 1024;
  int64_t bytes = int64_t{64} << 20;
};

// Messages as bytes; Mailbox below has them as values. A run's counts (summary.json) have its
// mailboxes' messages, those that were held back since they found no room when they were posted,
// and the bytes that went to other ranks.
class ByteMailbox {
 public:
  struct Letter {
    int from = 0;
    std::string bytes;
  };

  // Collective over `ranks`, of which it makes a communicator called `name`.
  ByteMailbox(const CommView& ranks, const std::string& name, const MailLimits& limits);
  ByteMailbox(const ByteMailbox&) = delete;
  // At any time, mail under way is lost. Keeps the communicator until the process ends, so that
  // mail that is late comes to nobody else.
  ~ByteMailbox();

  // For rank `to`, this one included. Local, as all that follows.
  void post(int to, std::string message);
  // What came first and was not taken yet.
  std::optional<Letter> take();
  // Sends what has found room, receives what has come. take() does it as well.
  void progress();

  // Something that was posted has found no room yet: post no more.
  bool congested() const;
  // Messages that were posted here and not taken yet.
  int64_t outstanding() const;
  bool quiet() const { return outstanding() == 0; }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// T: a value that base/wire.hpp can write.
template <class T>
class Mailbox {
 public:
  Mailbox(const CommView& ranks, const std::string& name, const MailLimits& limits)
      : mail_(ranks, name, limits) {}

  void post(int to, const T& value) { mail_.post(to, base::to_bytes(value)); }
  std::optional<T> take() {
    auto letter = mail_.take();
    if (!letter) return std::nullopt;
    return base::from_bytes<T>(letter->bytes);
  }
  void progress() { mail_.progress(); }
  bool congested() const { return mail_.congested(); }
  int64_t outstanding() const { return mail_.outstanding(); }
  bool quiet() const { return mail_.quiet(); }

 private:
  ByteMailbox mail_;
};

}  // namespace trireme::comm
