/* Intrusive doubly linked list. An unlinked node points at itself, so removal is always safe. */
#pragma once

#include "base/base.h"

struct hf_list {
    struct hf_list *next, *prev;
};

static inline void hf_list_init(struct hf_list *l)
{
    l->next = l->prev = l;
}

static inline bool hf_list_empty(const struct hf_list *l)
{
    return l->next == l;
}

static inline void hf_list_add_tail(struct hf_list *head, struct hf_list *node)
{
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}

static inline void hf_list_add_head(struct hf_list *head, struct hf_list *node)
{
    hf_list_add_tail(head->next, node);
}

static inline void hf_list_del(struct hf_list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    hf_list_init(node);
}

#define hf_list_entry(ptr, type, member) HF_CONTAINER_OF(ptr, type, member)

#define hf_list_foreach(it, head) for (struct hf_list *it = (head)->next; it != (head); it = it->next)
/* The current node may be unlinked or freed by the body. */
#define hf_list_foreach_safe(it, head)                                           \
    for (struct hf_list *it = (head)->next, *it##_next = it->next; it != (head); \
         it = it##_next, it##_next = it->next)
