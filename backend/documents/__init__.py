"""What Label Studio shows as one plain text, with a map both ways between its characters and the editor's positions."""
