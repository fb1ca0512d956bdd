#include "trireme/comm/mailbox.hpp"

#include <algorithm>
#include <deque>
#include <list>
#include <utility>
#include <vector>

#include "comm/mpi_support.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::comm {
namespace {

// Room that the receiver gives back when a message is taken.
struct Room {
  int64_t messages = 0;
  int64_t bytes = 0;
};

// A piece of a message on the wire; its last byte says whether another one follows. Its memory
// stays where it is until MPI is done with it.
struct Piece {
  int peer = 0;
  std::string bytes;
  MPI_Request request = MPI_REQUEST_NULL;

  bool done() {
    int flag = 0;
    TRIREME_MPI(MPI_Test(&request, &flag, MPI_STATUS_IGNORE));
    return flag != 0;
  }
};
using Pieces = std::deque<std::unique_ptr<Piece>>;

// A rank cannot know that nothing comes to it any more: what others have said last, that a message
// was taken, nobody waits for. So a mailbox leaves its communicator behind for as long as the
// process lives: MPI would give its number to the next one, which would receive that mail. And the
// memory of transfers that are not over.
void abandon(Comm comm, Pieces sending, Pieces receiving) {
  struct Left {
    Comm comm;
    Pieces sending, receiving;
  };
  static auto* const all = new std::deque<Left>;  // MPI may be over before static objects are
  all->push_back({std::move(comm), std::move(sending), std::move(receiving)});
}

}  // namespace

struct ByteMailbox::Impl {
  struct Peer {
    Room under_way;                  // sent there and not taken yet
    std::list<std::string> waiting;  // posted, without room; there is one of these for each rank,
                                     // and an empty deque has memory
    std::string partial;             // the first pieces of a message that comes from there
  };

  Impl(const CommView& ranks, const std::string& name, const MailLimits& mail_limits)
      : limits(mail_limits),
        comm(Comm::duplicate(ranks, name)),
        me(ranks.rank()),
        peers(static_cast<size_t>(ranks.size())) {}

  MPI_Comm handle() const { return static_cast<MPI_Comm>(comm.view().native()); }
  Peer& peer(int rank) { return peers[static_cast<size_t>(rank)]; }
  bool has_room(const Peer& to, size_t bytes) const;
  void send(int to, std::string message);
  void begin_send(int to, Tag tag, std::string bytes);
  void give_room(int to, size_t bytes);
  void receive();
  void assemble();
  void send_waiting();

  MailLimits limits;
  Comm comm;
  int me;
  std::vector<Peer> peers;
  std::deque<Letter> inbox;
  Pieces sending;
  Pieces receiving;       // in the order of their arrival
  int64_t waiting = 0;    // messages without room
  int64_t under_way = 0;  // messages that were not taken yet
};

bool ByteMailbox::Impl::has_room(const Peer& to, size_t bytes) const {
  if (to.under_way.messages == 0) return true;
  return to.under_way.messages < limits.messages &&
         to.under_way.bytes + static_cast<int64_t>(bytes) <= limits.bytes;
}

void ByteMailbox::Impl::begin_send(int to, Tag tag, std::string bytes) {
  sending.push_back(std::make_unique<Piece>(Piece{.peer = to, .bytes = std::move(bytes)}));
  Piece& piece = *sending.back();
  TRIREME_MPI(MPI_Isend(piece.bytes.data(), static_cast<int>(piece.bytes.size()), MPI_BYTE, to,
                        static_cast<int>(tag), handle(), &piece.request));
}

void ByteMailbox::Impl::send(int to, std::string message) {
  ++under_way;
  ++peer(to).under_way.messages;
  peer(to).under_way.bytes += static_cast<int64_t>(message.size());
  if (to == me) {
    inbox.push_back({me, std::move(message)});
    return;
  }
  trace::count("mail_bytes", static_cast<int64_t>(message.size()));
  const auto most = static_cast<size_t>(max_count - 1);
  size_t begin = 0;
  for (; message.size() - begin > most; begin += most)
    begin_send(to, Tag::mail, message.substr(begin, most) + '\1');
  if (begin > 0) message.erase(0, begin);
  message += '\0';
  begin_send(to, Tag::mail, std::move(message));
}

void ByteMailbox::Impl::give_room(int to, size_t bytes) {
  const Room room{1, static_cast<int64_t>(bytes)};
  if (to != me) return begin_send(to, Tag::mail_room, base::to_bytes(room));
  --under_way;
  --peer(me).under_way.messages;
  peer(me).under_way.bytes -= room.bytes;
}

void ByteMailbox::Impl::receive() {
  for (;;) {
    int there = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    TRIREME_MPI(MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, handle(), &there, &message, &status));
    if (!there) return;
    int count = 0;
    TRIREME_MPI(MPI_Get_count(&status, MPI_BYTE, &count));
    if (status.MPI_TAG == static_cast<int>(Tag::mail_room)) {
      std::string bytes(static_cast<size_t>(count), '\0');
      TRIREME_MPI(MPI_Mrecv(bytes.data(), count, MPI_BYTE, &message, MPI_STATUS_IGNORE));
      const auto room = base::from_bytes<Room>(bytes);
      under_way -= room.messages;
      peer(status.MPI_SOURCE).under_way.messages -= room.messages;
      peer(status.MPI_SOURCE).under_way.bytes -= room.bytes;
      continue;
    }
    receiving.push_back(std::make_unique<Piece>(
        Piece{.peer = status.MPI_SOURCE, .bytes = std::string(static_cast<size_t>(count), '\0')}));
    Piece& piece = *receiving.back();
    TRIREME_MPI(MPI_Imrecv(piece.bytes.data(), count, MPI_BYTE, &message, &piece.request));
  }
}

void ByteMailbox::Impl::assemble() {
  for (; !receiving.empty() && receiving.front()->done(); receiving.pop_front()) {
    Piece& piece = *receiving.front();
    const bool more = piece.bytes.back() != '\0';
    piece.bytes.pop_back();
    std::string& partial = peer(piece.peer).partial;
    std::string whole =
        partial.empty() ? std::move(piece.bytes) : std::exchange(partial, {}) + piece.bytes;
    if (more) {
      partial = std::move(whole);
    } else {
      inbox.push_back({piece.peer, std::move(whole)});
    }
  }
}

void ByteMailbox::Impl::send_waiting() {
  for (int to = 0; waiting > 0 && to < static_cast<int>(peers.size()); ++to) {
    auto& queue = peer(to).waiting;
    while (!queue.empty() && has_room(peer(to), queue.front().size())) {
      send(to, std::move(queue.front()));
      queue.pop_front();
      --waiting;
    }
  }
}

ByteMailbox::ByteMailbox(const CommView& ranks, const std::string& name, const MailLimits& limits)
    : impl_(std::make_unique<Impl>(ranks, name, limits)) {}

ByteMailbox::~ByteMailbox() {
  abandon(std::move(impl_->comm), std::move(impl_->sending), std::move(impl_->receiving));
}

void ByteMailbox::post(int to, std::string message) {
  EXPECT(to >= 0 && to < static_cast<int>(impl_->peers.size()));
  trace::count("mail_messages", 1);
  Impl::Peer& peer = impl_->peer(to);
  if (peer.waiting.empty() && impl_->has_room(peer, message.size()))
    return impl_->send(to, std::move(message));
  trace::count("mail_held_back", 1);
  ++impl_->waiting;
  peer.waiting.push_back(std::move(message));
}

void ByteMailbox::progress() {
  if (impl_->peers.size() > 1) {
    impl_->receive();
    impl_->assemble();
    while (!impl_->sending.empty() && impl_->sending.front()->done()) impl_->sending.pop_front();
  }
  impl_->send_waiting();
}

std::optional<ByteMailbox::Letter> ByteMailbox::take() {
  progress();
  if (impl_->inbox.empty()) return std::nullopt;
  Letter letter = std::move(impl_->inbox.front());
  impl_->inbox.pop_front();
  impl_->give_room(letter.from, letter.bytes.size());
  return letter;
}

bool ByteMailbox::congested() const { return impl_->waiting > 0; }
int64_t ByteMailbox::outstanding() const { return impl_->waiting + impl_->under_way; }

}  // namespace trireme::comm
