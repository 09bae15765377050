"""Records of each site: SQL queries with one row for an order, a post or a ticket, without times and internal keys.

The first column of a query is the key of the record in its database. All other tables are compared row by row, except
those in `BOOKKEEPING`. So no change of a site can be missed.
"""

from collections.abc import Mapping

from env_adapters.webarena.grading.changes import ADDRESS


def joined(table: str, *columns: str) -> str:
    """Return the SQL expression of the non-empty columns of a table, separated by commas."""
    parts = " || ".join(f"iif(coalesce({table}.{name}, '') = '', '', {table}.{name} || ', ')" for name in columns)
    return f"rtrim({parts}, ', ')"


SHOP: Mapping[str, str] = {
    "account": "SELECT id, email, username, first_name, last_name, is_staff, is_superuser, is_active, password "
    "FROM auth_user",
    "address": f"SELECT book.id, user.email AS customer, {', '.join(f'book.{name}' for name in ADDRESS)}, "
    "book.country_id AS country, phone_number AS phone, notes, is_default_for_shipping AS default_shipping, "
    "is_default_for_billing AS default_billing FROM address_useraddress book JOIN auth_user user ON user.id = user_id",
    "cart line": "SELECT line.id, user.email AS customer, product.title AS product, line.quantity, basket.status "
    "FROM basket_line line JOIN basket_basket basket ON basket.id = basket_id "
    "JOIN catalogue_product product ON product.id = product_id LEFT JOIN auth_user user ON user.id = owner_id "
    "WHERE basket.status NOT IN ('Submitted', 'Merged')",
    "note": "SELECT id, order_id AS 'order', user_id AS author, message FROM order_ordernote "
    "WHERE note_type <> 'System'",
    "order": "SELECT made.id, user.email AS customer, made.status, shipping_code AS shipping, guest_email, "
    "(SELECT group_concat(part, '; ') FROM (SELECT quantity || ' x ' || title || ' (' || status || ')' AS part "
    "FROM order_line WHERE order_id = made.id ORDER BY id)) AS lines, "
    f"{joined('place', *ADDRESS, 'country_id', 'phone_number', 'notes')} AS ship_to, "
    f"{joined('bill', *ADDRESS, 'country_id')} AS bill_to "
    "FROM order_order made LEFT JOIN auth_user user ON user.id = user_id "
    "LEFT JOIN order_shippingaddress place ON place.id = shipping_address_id "
    "LEFT JOIN order_billingaddress bill ON bill.id = billing_address_id",
    "product": "SELECT product.id, product.title, upc, slug, description, structure, is_public, is_discountable, "
    "meta_title, meta_description, product_class_id, parent_id, partner_id, partner_sku, price, price_currency, "
    "num_in_stock, low_stock_threshold "
    "FROM catalogue_product product LEFT JOIN partner_stockrecord stock ON stock.product_id = product.id",
    "review": "SELECT review.id, product.title AS product, user.email AS customer, review.name, score, review.title, "
    "body, CASE review.status WHEN 0 THEN 'Requires moderation' WHEN 1 THEN 'Approved' ELSE 'Rejected' END AS status "
    "FROM reviews_productreview review JOIN catalogue_product product ON product.id = product_id "
    "LEFT JOIN auth_user user ON user.id = user_id",
    "wish": "SELECT line.id, user.email AS customer, list.name AS list, product.title AS product, line.quantity "
    "FROM wishlists_line line JOIN wishlists_wishlist list ON list.id = wishlist_id "
    "JOIN auth_user user ON user.id = owner_id LEFT JOIN catalogue_product product ON product.id = product_id",
}
FIRST_POSTS = "SELECT min(id) FROM spirit_comment_comment GROUP BY topic_id"
TOPICS = (
    "SELECT topic.id, category.title AS category, topic.title, user.username AS member, "
    f"(SELECT comment FROM spirit_comment_comment WHERE topic_id = topic.id AND id IN ({FIRST_POSTS})) AS text, "
    "coalesce((SELECT group_concat(username, ', ') FROM (SELECT username FROM spirit_topic_private_topicprivate "
    "JOIN auth_user ON auth_user.id = user_id WHERE topic_id = topic.id ORDER BY username)), '') AS participants, "
    "topic.is_closed AS closed, topic.is_removed AS removed, is_pinned, is_globally_pinned "
    "FROM spirit_topic_topic topic JOIN spirit_category_category category ON category.id = category_id "
    "JOIN auth_user user ON user.id = topic.user_id"
)
"""Topics and private messages with the text of their first post."""
FORUM: Mapping[str, str] = {
    "like": "SELECT mark.id, user.username AS member, comment_id AS post "
    "FROM spirit_comment_like_commentlike mark JOIN auth_user user ON user.id = user_id",
    "member": "SELECT user.id, username, email, first_name, last_name, password, is_staff, is_superuser, is_active, "
    "location, nickname, timezone, notify, avatar, is_administrator, is_moderator, is_verified "
    "FROM auth_user user JOIN spirit_user_userprofile profile ON profile.user_id = user.id",
    "post": "SELECT post.id, topic.title AS topic, user.username AS member, comment AS text, action, "
    "post.is_removed AS removed FROM spirit_comment_comment post "
    "JOIN spirit_topic_topic topic ON topic.id = topic_id JOIN auth_user user ON user.id = post.user_id "
    f"WHERE post.id NOT IN ({FIRST_POSTS})",
    "message": f"{TOPICS} WHERE category.title = 'Private'",
    "topic": f"{TOPICS} WHERE category.title <> 'Private'",
}
CODE: Mapping[str, str] = {
    "comment": "SELECT tkt_rid, tkt_uuid AS ticket, login, icomment AS text, mimetype "
    "FROM ticketchng JOIN ticket USING (tkt_id) WHERE length(icomment) > 0",
    "developer": "SELECT uid, login, pw, cap, info FROM user",
    "event": "SELECT objid, type, coalesce(euser, user) AS login, coalesce(ecomment, comment) AS text, bgcolor "
    "FROM event WHERE type <> 't'",
    "setting": "SELECT name, value FROM config WHERE name NOT LIKE 'baseurl:%' AND name NOT LIKE 'captcha-secret%'",
    "tag": "SELECT rid || ' ' || tagname, tagtype, value FROM tagxref JOIN tag USING (tagid) "
    "WHERE tagname NOT LIKE 'tkt-%'",
    "ticket": "SELECT tkt_uuid, title, type, status, priority, assignee, reporter, comment AS text FROM ticket",
}
VIEWS: Mapping[str, Mapping[str, str]] = {"shop": SHOP, "forum": FORUM, "code": CODE}
"""Query of each kind of record of each site."""
CREATION: Mapping[str, str] = {"ticket": "tkt_ctime, 1"}
"""Terms that sort the records of a kind by their creation; the keys of the other kinds do."""

BOOKKEEPING: Mapping[str, frozenset[str]] = {
    "shop": frozenset(
        (
            # tables of the queries above, and tables that the site derives from them
            *("address_useraddress", "auth_user", "basket_basket", "basket_line", "catalogue_product"),
            *("order_billingaddress", "order_line", "order_lineprice", "order_order", "order_orderstatuschange"),
            *("order_ordernote", "order_shippingaddress", "partner_stockalert", "partner_stockrecord"),
            *("reviews_productreview", "wishlists_line"),
            *("order_communicationevent", "communication_email", "communication_notification"),
            # statistics of visits, sessions, counters
            *("analytics_productrecord", "analytics_userproductview", "analytics_userrecord", "analytics_usersearch"),
            *("django_session", "sqlite_sequence"),
        )
    ),
    "forum": frozenset(
        (
            *("auth_user", "spirit_user_userprofile", "spirit_comment_comment", "spirit_comment_like_commentlike"),
            *("spirit_topic_topic", "spirit_topic_private_topicprivate", "spirit_comment_history_commenthistory"),
            # positions of reading, notices of the site to its members, sessions, counters
            *("spirit_comment_bookmark_commentbookmark", "spirit_topic_notification_topicnotification"),
            *("spirit_topic_unread_topicunread", "django_session", "sqlite_sequence"),
        )
    ),
    "code": frozenset(
        (
            *("config", "event", "tag", "tagxref", "ticket", "ticketchng", "user"),
            # storage of the records that `event`, `ticket` and `tag` list, and indexes of their links
            *("backlink", "blob", "cherrypick", "concealed", "delta", "filename", "leaf", "mlink", "orphan"),
            *("phantom", "plink", "private", "rcvfrom", "shun", "sqlite_stat1", "unclustered", "unsent"),
            # cache of pages, which the second visit by a link creates, and the log of logins
            *("vcache", "accesslog"),
        )
    ),
}
"""Tables that are not compared row by row: queries cover them, or the site writes them by itself."""
