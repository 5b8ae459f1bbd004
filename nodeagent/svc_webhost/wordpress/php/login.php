<?php
// Made by the panel, and removed by the first visitor who opens it.
if ($_SERVER['REQUEST_METHOD'] !== 'GET') {
    http_response_code(405);
    exit;
}
if (!@unlink(__FILE__) || time() > {until}) {
    http_response_code(403);
    exit('This link was used before, or is too old. The panel makes a new one.');
}
require __DIR__ . '/wp-load.php';
nocache_headers();
header('Referrer-Policy: no-referrer');
wp_set_auth_cookie({user});
wp_safe_redirect(admin_url());
